/* A libnvidia-ml.so.1 with two GPUs, the second of which is dead: what the real binding is run on
 * where there is no driver. Structures are laid out as nvml.h documents them. FAKE_NVML_INIT sets
 * the return code of nvmlInit_v2, FAKE_NVML_BOARD what the first GPU is: h100 (default), mig (an H100
 * cut into four), a100, geforce, b200, gb200, gh200 or gb10. With OLD_DRIVER defined, calls of newer drivers do not
 * exist. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    CORRUPTED_INFOROM = 14, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };
enum { DOUBLE, UINT, ULONG, ULONGLONG, SLONGLONG, SINT, USHORT };

typedef struct { uint32_t field, scope; int64_t timestamp, latency_us; uint32_t type, code;
    union { double d; uint32_t ui; unsigned long ul; uint64_t ull; int64_t sll; int32_t si; uint16_t us; } value;
} field_t;
typedef struct { uint64_t at; union { double d; uint32_t ui; uint64_t ull; } value; } kept_t;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } memory_v2_t;
typedef struct { uint64_t total, free, used; } memory_t;
typedef struct { char legacy[16]; uint32_t domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { uint32_t pid; uint64_t memory; uint32_t gpu_instance, compute_instance; } process_t;

typedef struct { uint32_t pid; uint64_t at; uint32_t sm, memory, encoder, decoder; } utilization_t;
typedef struct { uint32_t version; uint64_t agg_parity, agg_secded, agg_cor, vol_parity, vol_secded, vol_cor,
    l2, sm, pcie, mcu, other; uint32_t above_threshold; } sram_t;
typedef struct { uint32_t version; uint8_t cluster[16]; uint32_t status, clique; uint8_t state; uint32_t health; } fabric_t;
typedef struct { uint32_t version; char guid[16], serial[16]; uint8_t slot, tray, host, peer, module; } platform_t;
typedef struct { uint32_t version; int32_t value; } versioned_t;
typedef struct { uint32_t id, code; double value; char *names[3]; } metric_t;
typedef struct sample { int takes; uint32_t instance; } sample_t;
typedef struct { uint32_t version, count; sample_t *first, *second; metric_t metrics[]; } metrics_t;
typedef struct { uint32_t gpu_instance, compute_instance; uint64_t mib; const char *name, *uuid; } mig_t;

static int gpu;  /* its address is the handle */
static mig_t parts[] = {
    {2, 0, 40448, "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "MIG-00000000-0000-0000-0000-000000000000"},
    {3, 0, 20096, "NVIDIA H100 80GB HBM3 MIG 2g.20gb", "MIG-00000001-0000-0000-0000-000000000001"},
    {9, 0, 9984, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-00000002-0000-0000-0000-000000000002"},
    {10, 0, 9984, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-00000003-0000-0000-0000-000000000003"},
};
static mig_t *part(void *h) { return h == &gpu ? 0 : h; }
static int is(const char *board) {
    const char *set = getenv("FAKE_NVML_BOARD");
    return !strcmp(set ? set : "h100", board);
}
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
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out) { *out = &gpu; return SUCCESS; }
GIVES_TEXT(nvmlDeviceGetUUID, part(h) ? part(h)->uuid : "GPU-5ca1ab1e-0000-0000-0000-000000000000")
GIVES_TEXT(nvmlDeviceGetName, part(h) ? part(h)->name : is("a100") ? "NVIDIA A100-SXM4-80GB" :
    is("geforce") ? "NVIDIA GeForce RTX 2080 SUPER" : is("b200") ? "NVIDIA B200" : "NVIDIA H100 80GB HBM3")
GIVES_TEXT(nvmlDeviceGetSerial, "\xff\xfe")
GIVES_TEXT(nvmlDeviceGetBoardPartNumber, "692-2G520-0200-000")
GIVES_TEXT(nvmlDeviceGetInforomImageVersion, "G520.0200.00.05")
GIVES_TEXT(nvmlDeviceGetVbiosVersion, "96.00.A5.00.01")
int nvmlDeviceGetPciInfo_v3(void *h, pci_t *out) {
    memset(out, 0, sizeof *out);
    out->domain = 1; out->bus = 0x3b;
    strcpy(out->bus_id, "00000001:3B:00.0");
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *h, memory_t *out) {
    if (is("gb10")) return NOT_SUPPORTED;
    out->total = 100 * MIB; out->free = 60 * MIB; out->used = 40 * MIB;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *h, unsigned out[2]) { out[0] = 97; out[1] = 31; return SUCCESS; }
#ifndef OLD_DRIVER
/* Samples of 0.2 s, with each call a second later: the GPU worked in the newest two of six. */
int nvmlDeviceGetSamples(void *h, unsigned kind, uint64_t since, unsigned *type, unsigned *n, kept_t *out) {
    static uint64_t seconds[3];
    if (kind != 1 && kind != 2) return NOT_SUPPORTED;
    const uint64_t newest = 1700000000000000 + 1000000 * ++seconds[kind];
    if (*n < 6) return INSUFFICIENT_SIZE;
    *n = 6; *type = 1;
    for (unsigned i = 0; i < 6; i++) {
        out[i].at = newest - (5 - i) * 200000;
        out[i].value.ui = i < 4 ? 0 : kind == 1 ? 100 : 20;
    }
    return SUCCESS;
}
#endif
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
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *pending) {
    *now = *pending = 1;
    return is("mig") ? SUCCESS : NOT_SUPPORTED;
}
GIVES(nvmlDeviceGetMaxMigDeviceCount, 7)
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **out) {
    if (index >= sizeof parts / sizeof *parts) return NOT_FOUND;
    *out = &parts[index];
    return SUCCESS;
}
GIVES(nvmlDeviceGetGpuInstanceId, part(h)->gpu_instance)
GIVES(nvmlDeviceGetComputeInstanceId, part(h)->compute_instance)
GIVES(nvmlDeviceGetPersistenceMode, 1)
GIVES(nvmlDeviceGetComputeMode, 3)
int nvmlDeviceGetNumaNodeId(void *h, int *out) { *out = 1; return is("gh200") ? SUCCESS : NOT_SUPPORTED; }
int nvmlDeviceGetAddressingMode(void *h, versioned_t *out) {
    if (out->version != (sizeof *out | 1u << 24)) return INVALID_ARGUMENT;
    out->value = is("gh200") || is("gb10") ? 2 : 1;
    return SUCCESS;
}
GIVES(nvmlDeviceGetArchitecture, is("geforce") ? 6 : is("a100") ? 7 : is("b200") ? 10 : 9)
GIVES_TWO(nvmlDeviceGetCudaComputeCapability, 9, 0)
int nvmlDeviceGetGspFirmwareVersion(void *h, char *out) { strcpy(out, "590.48.01"); return SUCCESS; }
GIVES_TWO(nvmlDeviceGetGspFirmwareMode, 1, 1)
int nvmlDeviceGetCpuAffinity(void *h, unsigned n, unsigned long *out) {
    memset(out, 0, n * sizeof *out);
    out[0] = 0xff; out[1] = 0xff;
    return SUCCESS;
}
int nvmlDeviceGetTopologyCommonAncestor(void *h, void *other, int *out) { *out = 40; return SUCCESS; }

GIVES_TWO(nvmlDeviceGetJpgUtilization, 13, 167000)
GIVES_TWO(nvmlDeviceGetOfaUtilization, 14, 167000)
GIVES(nvmlDeviceGetNumFans, is("geforce") ? 2 : 0)
GIVES_OF(nvmlDeviceGetFanSpeed_v2, 38 + which)
GIVES(nvmlDeviceGetCurrPcieLinkGeneration, 4)
GIVES(nvmlDeviceGetCurrPcieLinkWidth, 8)

int nvmlDeviceGetEccMode(void *h, unsigned *now, unsigned *pending) {
    *now = 1; *pending = 0;
    return is("geforce") ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(void *h, unsigned fate, unsigned since, uint64_t *out) {
    *out = 100 + 10 * since + fate;
    return SUCCESS;
}
int nvmlDeviceGetMemoryErrorCounter(void *h, unsigned fate, unsigned since, unsigned place, uint64_t *out) {
    *out = 1000 * place + 10 * since + fate;
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(void *h, unsigned *cor, unsigned *unc, unsigned *pending, unsigned *failed) {
    *cor = 1; *unc = 2; *pending = 1; *failed = 0;
    return is("mig") ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetRowRemapperHistogram(void *h, unsigned out[5]) {
    unsigned banks[] = {2550, 6, 3, 1, 0};
    memcpy(out, banks, sizeof banks);
    return SUCCESS;
}
int nvmlDeviceGetRetiredPages(void *h, unsigned cause, unsigned *n, uint64_t *out) { return NOT_SUPPORTED; }
int nvmlDeviceGetRetiredPagesPendingStatus(void *h, unsigned *out) { return NOT_SUPPORTED; }
int nvmlDeviceValidateInforom(void *h) { return is("a100") ? CORRUPTED_INFOROM : SUCCESS; }

int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *out) { *out = link != 3; return SUCCESS; }
GIVES_OF(nvmlDeviceGetNvLinkVersion, is("a100") ? 4 : is("b200") ? 7 : 6)
GIVES_OF(nvmlDeviceGetNvLinkRemoteDeviceType, 2)
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, pci_t *out) {
    memset(out, 0, sizeof *out);
    out->bus = 0xab; out->device = link;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkErrorCounter(void *h, unsigned link, unsigned counter, uint64_t *out) {
    *out = 10 * link + counter;
    return is("b200") || counter == 4 ? NOT_SUPPORTED : SUCCESS;
}

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
    case 91: f->type = USHORT; f->value.us = is("geforce") ? 0 : 4; break;
    case 3: case 4: case 5: case 6: case 94: case 173: f->type = ULONGLONG; f->value.ull = f->field; break;
    case 142: case 143: case 144: case 145: f->type = UINT; f->value.ui = 0; break;
    case 164: f->type = UINT; f->value.ui = 26562; break;
    case 170: f->type = UINT; f->value.ui = is("b200") ? 1 : 0; break;
    case 171: f->type = UINT; f->value.ui = 1; break;
    case 172: f->type = UINT; f->value.ui = 44712; break;
    case 193: case 194: f->type = SINT; f->value.si = f->field == 193 ? -8 : -2; break;
    case 195: case 196: f->type = UINT; f->value.ui = 0; break;
    case 206: case 213: case 220: case 222:
        f->type = ULONGLONG; f->value.ull = f->field == 220 ? 0x50c : f->field == 222 ? 0xfff : f->field;
        return is("b200") ? SUCCESS : NOT_SUPPORTED;
    case 230: f->type = UINT; f->value.ui = is("h100") ? 2 : 0; break;
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

int nvmlDeviceGetProcessUtilization(void *h, utilization_t *out, unsigned *n, uint64_t since) {
    if (since >= 1700000000000000) return NOT_FOUND;
    if (!out) { *n = 2; return INSUFFICIENT_SIZE; }
    *n = 2;
    out[0] = (utilization_t){4194200, 1700000000000000, 55, 21, 3, 4};
    out[1] = (utilization_t){0};
    return SUCCESS;
}

static int processes(unsigned *n, process_t *out) {
    if (*n < 2) { *n = 2; return INSUFFICIENT_SIZE; }
    *n = 2;
    out[0] = (process_t){4194200, 3 * MIB, is("mig") ? 9 : ~0u, is("mig") ? 0 : ~0u};
    out[1] = (process_t){4194201, ~0ull, ~0u, ~0u};
    return SUCCESS;
}
#ifdef OLD_DRIVER
int nvmlDeviceGetComputeRunningProcesses_v2(void *h, unsigned *n, process_t *out) { return processes(n, out); }
#else
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, process_t *out) { return processes(n, out); }
int nvmlDeviceGetCurrentClocksEventReasons(void *h, uint64_t *out) { *out = 0x24; return SUCCESS; }
int nvmlDeviceGetTemperatureV(void *h, int32_t io[3]) { io[2] = 62; return SUCCESS; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *n, process_t *out) { *n = 0; return SUCCESS; }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *h, unsigned *n, process_t *out) { *n = 0; return SUCCESS; }

#define HAS_VERSION(of, number) if ((of)->version != (sizeof *(of) | (number) << 24)) return VERSION_MISMATCH;
int nvmlDeviceGetMarginTemperature(void *h, versioned_t *out) {
    HAS_VERSION(out, 1)
    out->value = -3;
    return is("a100") || is("geforce") ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetUnrepairableMemoryFlag_v1(void *h, versioned_t *out) {
    HAS_VERSION(out, 1)
    out->value = 1;
    return SUCCESS;
}
int nvmlDeviceGetSramEccErrorStatus(void *h, sram_t *out) {
    HAS_VERSION(out, 1)
    *out = (sram_t){out->version, 1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 1};
    return is("a100") ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetGpuFabricInfoV(void *h, fabric_t *out) {
    HAS_VERSION(out, 2)
    out->state = 3; if (is("gb200")) { out->cluster[0] = 0xab; out->cluster[15] = 1; out->clique = 32766; }
    out->status = is("mig") ? GPU_IS_LOST : SUCCESS; out->health = is("mig") ? 0x5a9 : 0x1aa;
    return is("a100") || is("geforce") ? NOT_SUPPORTED : SUCCESS;
}
/* A driver older than version 2 of the structure on the H100; what is not told is 255. */
int nvmlDeviceGetPlatformInfo(void *h, platform_t *out) {
    if (out->version != (sizeof *out | (is("gb200") ? 2u : 1u) << 24)) return VERSION_MISMATCH;
    if (is("gb200")) { memcpy(out->serial, "1820224190105", 13); out->slot = 17; out->tray = 10; out->module = 2; }
    else if (is("h100")) { out->slot = out->tray = 255; out->module = 5; }
    else return NOT_SUPPORTED;
    return SUCCESS;
}
int nvmlDeviceGetVirtualizationMode(void *h, uint32_t *out) { *out = is("geforce") ? 1 : 0; return SUCCESS; }
int nvmlGpmQueryDeviceSupport(void *h, versioned_t *out) {
    if (out->version != 1) return VERSION_MISMATCH;
    out->value = !is("a100") && !is("geforce");
    return SUCCESS;
}
int nvmlGpmSampleAlloc(sample_t **out) { *out = calloc(1, sizeof **out); return SUCCESS; }
int nvmlGpmSampleFree(sample_t *sample) { free(sample); return SUCCESS; }
int nvmlGpmMigSampleGet(void *h, unsigned instance, sample_t *sample) {
    static int takes;
    sample->takes = ++takes; sample->instance = instance;
    return SUCCESS;
}
int nvmlGpmSampleGet(void *h, sample_t *sample) {
    return is("mig") ? NOT_SUPPORTED : nvmlGpmMigSampleGet(h, 0, sample);
}
int nvmlGpmMetricsGet(metrics_t *io) {
    if (io->version != 1 || io->first->takes >= io->second->takes) return INVALID_ARGUMENT;
    if (io->first->instance != io->second->instance) return INVALID_ARGUMENT;
    for (metric_t *m = io->metrics; m < io->metrics + io->count; m++) {
        m->code = m->id == 6 ? NOT_SUPPORTED : SUCCESS;
        m->value = m->id == 9 ? 0.0 / 0.0 : m->id == 11 ? 1e30 : m->id + io->second->instance;
    }
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *h, memory_v2_t *out) {
    if (out->version != (sizeof *out | 2u << 24)) return INVALID_ARGUMENT;
    if (is("gb10")) return NOT_SUPPORTED;
    if (part(h)) {
        out->total = part(h)->mib * MIB; out->reserved = 0; out->free = out->total - 9 * MIB; out->used = 9 * MIB;
        return SUCCESS;
    }
    out->total = 100 * MIB; out->reserved = 10 * MIB; out->free = 60 * MIB; out->used = 30 * MIB;
    return SUCCESS;
}
#endif
