/* Unpacks a .tar.xz from standard input into a folder: `unpack FOLDER`.
 *
 * Carried by bundles, since a small host has neither xz nor tar. It takes what release/archive.py writes:
 * folders, files and symbolic links in the ustar form. Exit codes: 0, or 1 with a line on standard error.
 */
#include <errno.h>
#include <fcntl.h>
#include <lzma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 512, BUFFER = 1 << 16 };

static lzma_stream stream = LZMA_STREAM_INIT;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* Fills `to` with `count` decompressed bytes; 0 at the end of the stream. */
static int take(unsigned char *to, size_t count)
{
    static unsigned char in[BUFFER];
    stream.next_out = to;
    stream.avail_out = count;
    while (stream.avail_out > 0) {
        if (stream.avail_in == 0) {
            ssize_t got = read(STDIN_FILENO, in, sizeof in);
            if (got < 0)
                fail("standard input", strerror(errno));
            stream.next_in = in;
            stream.avail_in = (size_t)got;
        }
        lzma_ret done = lzma_code(&stream, stream.avail_in == 0 ? LZMA_FINISH : LZMA_RUN);
        if (done == LZMA_STREAM_END)
            return stream.avail_out == 0;
        if (done != LZMA_OK)
            fail("standard input", done == LZMA_MEM_ERROR ? "not enough memory" : "it is damaged");
    }
    return 1;
}

static unsigned long octal(const unsigned char *digits, size_t count)
{
    unsigned long value = 0;
    for (size_t i = 0; i < count && digits[i] >= '0' && digits[i] <= '7'; i++)
        value = value * 8 + (unsigned long)(digits[i] - '0');
    return value;
}

static void write_file(const char *path, unsigned long size, mode_t mode)
{
    static unsigned char data[BUFFER];
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
    if (file < 0)
        fail(path, strerror(errno));
    while (size > 0) {
        size_t part = size < BUFFER ? size : BUFFER;
        size_t padded = (part + BLOCK - 1) / BLOCK * BLOCK;
        if (!take(data, padded))
            fail(path, "it is cut short");
        for (size_t at = 0; at < part;) {
            ssize_t put = write(file, data + at, part - at);
            if (put < 0)
                fail(path, strerror(errno));
            at += (size_t)put;
        }
        size -= part;
    }
    if (fchmod(file, mode) != 0 || close(file) != 0)
        fail(path, strerror(errno));
}

/* One entry: its name is of ustar's two fields. */
static void unpack(const unsigned char *head)
{
    char path[257], target[101];
    const char *name = (const char *)head, *prefix = (const char *)head + 345;
    mode_t mode = (mode_t)octal(head + 100, 8) & 0777;
    if (*prefix)
        snprintf(path, sizeof path, "%.155s/%.100s", prefix, name);
    else
        snprintf(path, sizeof path, "%.100s", name);
    if (path[0] == '/' || strstr(path, ".."))
        fail(path, "not a name within the folder");
    switch (head[156]) {
    case '5':
        if (mkdir(path, mode) != 0 && errno != EEXIST)
            fail(path, strerror(errno));
        break;
    case '2':
        snprintf(target, sizeof target, "%.100s", (const char *)head + 157);
        if (symlink(target, path) != 0)
            fail(path, strerror(errno));
        break;
    case '0':
        write_file(path, octal(head + 124, 12), mode);
        break;
    default:
        fail(path, "neither a file, a folder nor a link");
    }
}

int main(int argc, char **argv)
{
    unsigned char head[BLOCK];
    if (argc != 2)
        fail("usage", "unpack FOLDER <ARCHIVE");
    if (chdir(argv[1]) != 0)
        fail(argv[1], strerror(errno));
    if (lzma_stream_decoder(&stream, UINT64_MAX, 0) != LZMA_OK)
        fail("standard input", "not enough memory");
    umask(022);
    for (;;) {
        if (!take(head, BLOCK))
            fail("standard input", "it is cut short");
        if (head[0] == 0)
            return 0;
        unpack(head);
    }
}
