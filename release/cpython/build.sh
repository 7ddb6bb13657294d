#!/bin/sh
# Builds CPython with all that it links into one program. Runs in the root that interpreter.py makes, as root.
#
#   build.sh MACHINE JOBS
#   /src    what interpreter.py has fetched and checked: NAME/orig.tar.*, NAME/debian.tar.xz, unpack.c
#   /out    gets python/ (a prefix that runs wherever it is put), unpack, and about: the versions of libraries
#
# Nothing is linked dynamically but glibc, and libstdc++ and libgcc_s, which wheels want: these two lie beside.
set -eu
# Two builds are the same bytes: the compiler writes this instant, 1980-01-01, where it would write its own.
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin SOURCE_DATE_EPOCH=315532800
machine=$1 jobs=$2
host=$machine-linux-gnu
build=$(gcc -dumpmachine)
static=/static
# The same folder everywhere, and no path of it in what is made.
hardened="-g0 -ffile-prefix-map=/src=. -fstack-protector-strong -D_FORTIFY_SOURCE=2"
flags="-O2 $hardened"
export CC="$host-gcc" CXX="$host-g++" AR="$host-ar" RANLIB="$host-ranlib" STRIP="$host-strip"

mkdir -p $static/lib $static/include /out

# source NAME PATTERN: unpacks it with those of Debian's patches whose names match, and goes there.
source() {
    mkdir "/src/$1/tree"
    cd "/src/$1/tree"
    tar xf ../orig.tar.* --strip-components=1
    tar xf ../debian.tar.xz -C ..
    grep -E "$2" ../debian/patches/series | while read -r name; do
        patch --strip=1 --silent --no-backup-if-mismatch --input="../debian/patches/$name" || exit 1
    done
}

source openssl '^[^#]'
# The host's authorities of Debian and Ubuntu; gpuwarden finds those of others. The host's openssl.cnf is for the
# host's OpenSSL: Red Hat's has keys that only Red Hat's knows.
./Configure "linux-$machine" --prefix=$static --libdir=lib --openssldir=/etc/ssl \
    no-shared no-tests no-docs no-apps no-legacy no-module no-engine no-autoload-config CC="$CC" CFLAGS="$flags" >/dev/null
make -s -j"$jobs" build_libs >/dev/null
make -s install_dev >/dev/null
# What configure of Python does not know that a static library wants after it.
echo "INPUT(-l:libcrypto.a -ldl -lpthread)" >$static/lib/libcrypto.so

# From 41 on they mend faults.
source sqlite '^(4[1-9]|[5-9])'
mkdir made && cd made
CC_FOR_BUILD=gcc BCC=gcc ../configure --build="$build" --host="$host" --prefix=$static --disable-shared \
    --disable-tcl --disable-readline CFLAGS="$flags -DSQLITE_ENABLE_COLUMN_METADATA" >/dev/null
make -s sqlite3.c BCC=gcc >/dev/null
$CC $flags -DSQLITE_THREADSAFE=1 -DSQLITE_ENABLE_MATH_FUNCTIONS -DSQLITE_ENABLE_FTS5 -DSQLITE_ENABLE_RTREE \
    -c sqlite3.c -o sqlite3.o
$AR rcsD $static/lib/libsqlite3.a sqlite3.o
cp sqlite3.h $static/include

for name in libz libbz2 liblzma libffi; do
    ln -sf "/usr/lib/$host/$name.a" $static/lib
done

# The others are for Debian's own layout.
source python '^(CVE|ssl-|dict-use|traverse-)'
with=
if [ "$machine" != "$(uname -m)" ]; then
    # One of the same version, for this machine, makes what the build itself runs.
    mkdir native && cd native
    CC=gcc CXX=g++ AR=ar RANLIB=ranlib ../configure --quiet --without-ensurepip --disable-test-modules >/dev/null
    make -s -j"$jobs" >/dev/null
    with="--with-build-python=$PWD/python ac_cv_file__dev_ptmx=yes ac_cv_file__dev_ptc=no"
    cd ..
fi
mkdir made && cd made
hidden=libcrypto.a:libssl.a:libsqlite3.a:libz.a:libbz2.a:liblzma.a:libffi.a
# Symbols of what is linked in stay inside: wheels bring versions of their own.
../configure --quiet --build="$build" --host="$host" --prefix=/python --disable-test-modules --without-ensurepip \
    --without-readline --with-openssl=$static --with-openssl-rpath=no --enable-ipv6 --disable-shared $with \
    MODULE_BUILDTYPE=static PKG_CONFIG=false \
    CFLAGS="$hardened -ffile-prefix-map=/static=." CPPFLAGS="-I$static/include" \
    LDFLAGS="-L$static/lib -Wl,--exclude-libs,$hidden -Wl,--disable-new-dtags,-rpath,'\$\$ORIGIN/../lib'" \
    LIBSQLITE3_CFLAGS="-I$static/include" LIBSQLITE3_LIBS="-L$static/lib -lsqlite3 -lm" \
    ZLIB_LIBS="-L$static/lib -lz" BZIP2_LIBS="-L$static/lib -lbz2" LIBLZMA_LIBS="-L$static/lib -llzma" \
    LIBFFI_LIBS="-L$static/lib -lffi" ZLIB_CFLAGS= BZIP2_CFLAGS= LIBLZMA_CFLAGS= LIBFFI_CFLAGS= \
    py_cv_module__tkinter=n/a py_cv_module__curses=n/a py_cv_module__curses_panel=n/a \
    py_cv_module__dbm=n/a py_cv_module__gdbm=n/a py_cv_module__uuid=n/a
make -s -j"$jobs" >/dev/null
make -s install DESTDIR=/installed >/dev/null

mkdir -p /out/python/bin /out/python/lib
cp /installed/python/bin/python3.13 /out/python/bin
ln -s python3.13 /out/python/bin/python3
cp -R /installed/python/lib/python3.13 /out/python/lib
cp -L "/usr/lib/$host/libstdc++.so.6" "/lib/$host/libgcc_s.so.1" /out/python/lib
cd /out/python/lib/python3.13
rm -rf config-* idlelib tkinter turtledemo turtle.py ensurepip pydoc_data test
find . -name __pycache__ -prune -exec rm -rf {} +
find . -name tests -prune -exec rm -rf {} +
$STRIP --strip-unneeded /out/python/lib/*.so.* /out/python/bin/python3.13

# The terms of all that is in it; those of Python lie in its library.
mkdir /out/python/licenses
cp /src/openssl/tree/LICENSE.txt /out/python/licenses/openssl
for name in zlib1g libffi7 libbz2-1.0 liblzma5 libstdc++6; do
    cp -L "/usr/share/doc/$name/copyright" "/out/python/licenses/$name"
done

$CC $flags -Wall -Wextra -Werror -o /out/unpack /src/unpack.c "/usr/lib/$host/liblzma.a"
$STRIP /out/unpack
dpkg-query --show --showformat='${Package}=${Version}\n' zlib1g-dev libffi-dev libbz2-dev liblzma-dev libstdc++6 |
    sort -u >/out/about
