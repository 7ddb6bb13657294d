/* A libnvidia-ml.so.1 of driver VERSION whose kernel module is a file, $FAKE_MODULE: "590 2" is a
 * module of driver 590 with two GPUs. Without the file, or with another than at nvmlInit, every call
 * fails as with a module that was unloaded. A pointer of another library, or of before nvmlInit, is
 * the end of the process. While $FAKE_HANG exists, utilization of GPU 0 does not return. Events are
 * lines "GPU TYPE DATA INSTANCE" that $FAKE_EVENTS gets after a GPU was registered; type 0 is a wait
 * that fails with code DATA. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, MISMATCH = 18 };
enum { GPUS_MAX = 8 };
typedef struct { char legacy[16]; uint32_t domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { void *device; uint64_t type, data; uint32_t gpu_instance, compute_instance; } event_t;
typedef struct { int number; long life; } gpu_t;
typedef struct { long life; gpu_t *gpu; unsigned long long types; long at; } events_t;

static gpu_t gpus[GPUS_MAX];
static long life;
static ino_t module;

static int loaded(char *version, int *count) {
    struct stat now;
    FILE *file = fopen(getenv("FAKE_MODULE"), "r");
    if (!file) return 0;
    int read = fscanf(file, "%15s %d", version, count);
    fstat(fileno(file), &now);
    fclose(file);
    return read == 2 ? (int)now.st_ino : 0;
}
static int ready(void) {
    char version[16]; int count;
    return life && loaded(version, &count) == (int)module;
}
static void own(gpu_t *gpu) {
    if (gpu < gpus || gpu >= gpus + GPUS_MAX || gpu->life != life) abort();
}

int nvmlInitWithFlags(unsigned flags) {
    char version[16]; int count;
    int inode = loaded(version, &count);
    if (!inode) return DRIVER_NOT_LOADED;
    if (strcmp(version, VERSION)) return MISMATCH;
    static long lives;
    module = inode;
    life = ++lives;
    for (int i = 0; i < GPUS_MAX; i++) gpus[i] = (gpu_t){i, 0};
    return SUCCESS;
}
int nvmlShutdown(void) { life = 0; return SUCCESS; }
const char *nvmlErrorString(int code) { return "an error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { strncpy(out, VERSION, n); return ready() ? SUCCESS : UNINITIALIZED; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 13010; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) {
    char version[16]; int count;
    if (!ready()) return UNINITIALIZED;
    loaded(version, &count);
    *out = count;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (!ready()) return UNINITIALIZED;
    gpus[index].life = life;
    *out = &gpus[index];
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) { return nvmlDeviceGetHandleByIndex_v2(uuid[4] - '0', out); }
int nvmlDeviceGetUUID(gpu_t *gpu, char *out, unsigned n) {
    own(gpu);
    snprintf(out, n, "GPU-%d", gpu->number);
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *out) {
    own(gpu);
    memset(out, 0, sizeof *out);
    out->bus = 0x10 + gpu->number;
    return ready() ? SUCCESS : UNINITIALIZED;
}
int nvmlDeviceGetUtilizationRates(gpu_t *gpu, unsigned out[2]) {
    own(gpu);
    while (!gpu->number && !access(getenv("FAKE_HANG"), F_OK)) usleep(10000);
    out[0] = 97; out[1] = 31;
    return ready() ? SUCCESS : UNINITIALIZED;
}
int nvmlDeviceGetPersistenceMode(gpu_t *gpu, unsigned *out) { own(gpu); *out = 1; return ready() ? SUCCESS : UNINITIALIZED; }
int nvmlDeviceGetTemperature(gpu_t *gpu, unsigned which, unsigned *out) { own(gpu); *out = 61; return ready() ? SUCCESS : UNINITIALIZED; }
int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, unsigned *n, void *out) { own(gpu); *n = 0; return ready() ? SUCCESS : UNINITIALIZED; }

int nvmlDeviceGetSupportedEventTypes(gpu_t *gpu, unsigned long long *out) {
    own(gpu);
    *out = gpu->number == 1 ? 0x14 : 0x1 | 0x8 | 0x10 | 0x4000;  /* GPU 1: P-states and clocks alone */
    return SUCCESS;
}
int nvmlEventSetCreate(events_t **out) {
    *out = malloc(sizeof **out);
    **out = (events_t){life, 0, 0, 0};
    return SUCCESS;
}
int nvmlEventSetFree(events_t *set) {
    if (set->life != life) abort();
    set->life = -1;
    return SUCCESS;
}
int nvmlDeviceRegisterEvents(gpu_t *gpu, unsigned long long types, events_t *set) {
    own(gpu);
    if (set->life != life) abort();
    if (types & ~0x4008ull) return INVALID_ARGUMENT;
    struct stat said;
    *set = (events_t){life, gpu, types, stat(getenv("FAKE_EVENTS"), &said) ? 0 : said.st_size};
    return SUCCESS;
}
int nvmlEventSetWait_v2(events_t *set, event_t *out, unsigned timeout_ms) {
    int number, code = TIMEOUT; unsigned long long type, data; unsigned instance;
    if (set->life != life || !timeout_ms) abort();
    FILE *file = fopen(getenv("FAKE_EVENTS"), "r");
    if (!file) return TIMEOUT;
    fseek(file, set->at, SEEK_SET);
    while (code == TIMEOUT && fscanf(file, "%d %lli %lli %i\n", &number, &type, &data, &instance) == 4) {
        set->at = ftell(file);
        if (number != set->gpu->number) continue;
        if (!type) code = (int)data;
        if (!(type & set->types)) continue;
        *out = (event_t){set->gpu, type, data, instance, ~0u};
        code = SUCCESS;
    }
    fclose(file);
    return code;
}
