/* A libnvidia-ml.so.1 with two GPUs, the second of which is dead: what the real binding is run on
 * where there is no driver. Structures are laid out as nvml.h documents them. FAKE_NVML_INIT sets
 * the return code of nvmlInit_v2. With OLD_DRIVER defined, calls of newer drivers do not exist. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
enum { DOUBLE, UINT, ULONG, ULONGLONG, SLONGLONG, SINT, USHORT };

typedef struct { uint32_t field, scope; int64_t timestamp, latency_us; uint32_t type, code;
    union { double d; uint32_t ui; unsigned long ul; uint64_t ull; int64_t sll; int32_t si; uint16_t us; } value;
} field_t;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } memory_v2_t;
typedef struct { uint64_t total, free, used; } memory_t;
typedef struct { char legacy[16]; uint32_t domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { uint32_t pid; uint64_t memory; uint32_t gpu_instance, compute_instance; } process_t;

static int gpu;  /* its address is the handle */
#define MIB (1024ull * 1024)
#define GIVES(name, value) int name(void *h, unsigned *out) { *out = value; return SUCCESS; }
#define GIVES_OF(name, value) int name(void *h, unsigned which, unsigned *out) { *out = value; return SUCCESS; }
#define GIVES_TWO(name, one, two) int name(void *h, unsigned *a, unsigned *b) { *a = one; *b = two; return SUCCESS; }
#define GIVES_TEXT(name, text) int name(void *h, char *out, unsigned n) { strncpy(out, text, n); return SUCCESS; }

int nvmlInit_v2(void) { const char *code = getenv("FAKE_NVML_INIT"); return code ? atoi(code) : SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return "an error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { strncpy(out, "590.48.01", n); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 13010; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (index) return GPU_IS_LOST;
    *out = &gpu;
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    *out = &gpu;
    return strcmp(uuid, "GPU-5ca1ab1e-0000-0000-0000-000000000000") ? INVALID_ARGUMENT : SUCCESS;
}
GIVES_TEXT(nvmlDeviceGetUUID, "GPU-5ca1ab1e-0000-0000-0000-000000000000")
GIVES_TEXT(nvmlDeviceGetName, "NVIDIA H100 80GB HBM3")
GIVES_TEXT(nvmlDeviceGetSerial, "\xff\xfe")
GIVES_TEXT(nvmlDeviceGetVbiosVersion, "96.00.A5.00.01")
int nvmlDeviceGetPciInfo_v3(void *h, pci_t *out) {
    memset(out, 0, sizeof *out);
    out->domain = 1; out->bus = 0x3b;
    strcpy(out->bus_id, "00000001:3B:00.0");
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *h, memory_t *out) {
    out->total = 100 * MIB; out->free = 60 * MIB; out->used = 40 * MIB;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *h, unsigned out[2]) { out[0] = 97; out[1] = 31; return SUCCESS; }
GIVES_TWO(nvmlDeviceGetEncoderUtilization, 11, 167000)
GIVES_TWO(nvmlDeviceGetDecoderUtilization, 12, 167000)
GIVES(nvmlDeviceGetPowerUsage, 301500)
GIVES(nvmlDeviceGetEnforcedPowerLimit, 700000)
GIVES(nvmlDeviceGetPowerManagementDefaultLimit, 700000)
GIVES_TWO(nvmlDeviceGetPowerManagementLimitConstraints, 200000, 700000)
int nvmlDeviceGetTotalEnergyConsumption(void *h, uint64_t *out) { *out = 5000; return SUCCESS; }
GIVES_OF(nvmlDeviceGetTemperature, 61)
GIVES_OF(nvmlDeviceGetTemperatureThreshold, which ? 97 : 100)
GIVES_OF(nvmlDeviceGetClockInfo, which == 1 ? 1980 : 2619)
GIVES_OF(nvmlDeviceGetMaxClockInfo, which == 1 ? 1981 : 2620)
int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, uint64_t *out) { *out = 4; return SUCCESS; }
GIVES(nvmlDeviceGetPerformanceState, 0)
GIVES(nvmlDeviceGetMaxPcieLinkGeneration, 5)
GIVES(nvmlDeviceGetMaxPcieLinkWidth, 16)
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *pending) { return NOT_SUPPORTED; }
GIVES(nvmlDeviceGetPersistenceMode, 1)

static int field(field_t *f) {
    f->timestamp = 1;
    switch (f->field) {
    case 82: f->type = UINT; f->value.ui = 55; break;
    case 83: f->type = ULONGLONG; f->value.ull = 1ull << 40; break;
    case 185: f->type = UINT; f->value.ui = 301000; break;
    case 186: f->type = SINT; f->value.si = 302000; break;
    case 190: f->type = ULONG; f->value.ul = 700000; break;
    case 74: f->type = DOUBLE; f->value.d = 2.5e9; break;
    case 75: f->type = SLONGLONG; f->value.sll = 3000000000ll; break;
    case 91: f->type = USHORT; f->value.us = 18; break;
    case 138: f->type = ULONGLONG; f->value.ull = f->scope == 0xffffffffu ? 10 : 1; break;
    case 139: f->type = ULONGLONG; f->value.ull = ~0ull; break;
    case 197: f->type = 99; break;
    case 198: f->timestamp = 0; f->type = DOUBLE; break;
    case 269: return INVALID_ARGUMENT;
    default: return NOT_SUPPORTED;
    }
    return SUCCESS;
}
int nvmlDeviceGetFieldValues(void *h, int n, field_t *fields) {
    for (int i = 0; i < n; i++) fields[i].code = field(&fields[i]);
    return SUCCESS;
}

static int processes(unsigned *n, process_t *out) {
    if (*n < 2) { *n = 2; return INSUFFICIENT_SIZE; }
    *n = 2;
    out[0] = (process_t){4194200, 3 * MIB, 0, 0};
    out[1] = (process_t){4194201, ~0ull, 0, 0};
    return SUCCESS;
}
#ifdef OLD_DRIVER
int nvmlDeviceGetComputeRunningProcesses_v2(void *h, unsigned *n, process_t *out) { return processes(n, out); }
#else
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, process_t *out) { return processes(n, out); }
int nvmlDeviceGetCurrentClocksEventReasons(void *h, uint64_t *out) { *out = 0x24; return SUCCESS; }
int nvmlDeviceGetTemperatureV(void *h, int32_t io[3]) { io[2] = 62; return SUCCESS; }
int nvmlDeviceGetMemoryInfo_v2(void *h, memory_v2_t *out) {
    if (out->version != (sizeof *out | 2u << 24)) return INVALID_ARGUMENT;
    out->total = 100 * MIB; out->reserved = 10 * MIB; out->free = 60 * MIB; out->used = 30 * MIB;
    return SUCCESS;
}
#endif
