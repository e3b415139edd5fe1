/* How the stand-in's GPUs are wired. NVML_STAND_IN_TOPOLOGY names the machine:
 *   nvswitch (also when unset): eight GPUs, four a socket, 18 NVLinks each to four NVSwitches
 *   nvlinks_down: the same, links 4 and 11 of GPU 3 down · link_errors, link_errors_grow: link 2 of GPU 5
 *   pcie: two a switch, two switches a socket, no NVLink · pcie4: each by itself, two a socket · pair: one a socket, no NVLink
 *   nvl: bridged in pairs by 12 of 18 links, as two H100 NVL · unbridged: all 18 links inactive
 *   a100: as nvswitch with 12 NVLinks each to six NVSwitches · dgx1: eight V100 of a DGX-1, six links each to others
 *   c2c: one or four GPUs, each with a CPU of its own beside it · virtual: nvswitch whose PCI tree tells nothing
 *   no_p2p, no_p2p_pair: pcie and pair whose chipset refuses P2P · no_numa: nvswitch without any affinity
 *   hang_ancestor: never answers for the ancestor of two GPUs
 * NVML_STAND_IN_WIRING says instead, GPU by GPU and pair by pair: "0@0 1@1 0:1=50/0/4 0:8=0/0/6" is socket 0 and 1,
 * ancestor SYSTEM, P2P status OK, four NVLinks, and six from GPU 0 to an NVSwitch.
 * How many GPUs there are is nvml.c's business: NVML_STAND_IN=two, half_ours (GPUs 0 to 3 are ours).
 *
 * Structures and values follow the public nvml.h.
 */
#include <unistd.h>

#include "stand_in.h"

enum { INVALID_ARGUMENT = 2, SINGLE = 10, NODE = 40, SYSTEM = 50 };
enum { GPU = 0, SWITCH = 2 };
enum { STATUS_OK = 0, CHIPSET = 1, NO = 5 };
enum { READ = 0, WRITE = 1, NVLINK = 2, ATOMICS = 3 };
enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };
#define LINKS 18u

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;

int nvmlDeviceGetPciInfo_v3(Device *gpu, PciInfo *pci);

static int machine(const char *name) {
    const char *set = getenv("NVML_STAND_IN_TOPOLOGY");
    return listed(set ? set : "nvswitch", name);
}

/* What NVML_STAND_IN_WIRING has of two GPUs, or of one and SWITCH_PEER: all 0 where they are not in it. */
#define SWITCH_PEER 8
static const char *wiring(void) { return getenv("NVML_STAND_IN_WIRING"); }

typedef struct { unsigned ancestor, p2p, links; } Wire;

static Wire wire(int one, int two) {
    char name[32];
    Wire found = {0, 0, 0};
    snprintf(name, sizeof name, "%d:%d=", one < two ? one : two, one < two ? two : one);
    const char *at = strstr(wiring(), name);
    if (at) sscanf(at + strlen(name), "%u/%u/%u", &found.ancestor, &found.p2p, &found.links);
    return found;
}

/* Where the NVLink of this number leads: a GPU, SWITCH_PEER, or -1. */
static int wired_to(const Device *gpu, unsigned link) {
    unsigned before = 0;
    for (int peer = 0; peer <= SWITCH_PEER; peer++)
        if (peer != gpu->index && link < (before += wire(gpu->index, peer).links)) return peer;
    return -1;
}

static int wired_socket(const Device *gpu) {
    char name[16];
    snprintf(name, sizeof name, "%d@", gpu->index);
    const char *at = strstr(wiring(), name);
    return at ? atoi(at + strlen(name)) : 0;
}

static int no_p2p(void) { return machine("no_p2p") || machine("no_p2p_pair"); }
static int apart(void) { return machine("pair") || machine("no_p2p_pair"); }
static int by_pcie(void) { return machine("pcie") || machine("pcie4") || apart() || no_p2p(); }
static int in_pairs(void) { return machine("nvl"); }
static int lonely(void) { return machine("c2c") && (is("gh200") || is("one")); }
static int direct(void) { return in_pairs() || machine("dgx1"); }
static int switched(void) { return !by_pcie() && !direct() && !lonely() && !machine("unbridged"); }
static int socket_of(const Device *gpu) {
    if (wiring()) return wired_socket(gpu);
    return apart() || machine("c2c") ? gpu->index : gpu->index / (machine("pcie4") ? 2 : 4);
}
static unsigned links(void) { return machine("a100") ? 12 : machine("dgx1") ? 6 : LINKS; }

/* Where the six links of each GPU of a DGX-1 lead: the hybrid cube mesh, some neighbors by two links. */
static const int mesh[8][6] = {{1, 2, 3, 3, 4, 4}, {0, 2, 2, 3, 5, 5}, {0, 1, 1, 3, 3, 6}, {0, 0, 1, 2, 2, 7},
                               {0, 0, 5, 6, 7, 7}, {1, 1, 4, 6, 6, 7}, {2, 4, 5, 5, 7, 7}, {3, 4, 4, 5, 6, 6}};

static int joined(const Device *one, const Device *two) {
    if (wiring()) return wire(one->index, two->index).links || (wire(one->index, SWITCH_PEER).links && wire(two->index, SWITCH_PEER).links);
    if (in_pairs()) return one->index / 2 == two->index / 2;
    for (int link = 0; machine("dgx1") && link < 6; link++)
        if (mesh[one->index][link] == two->index) return 1;
    return switched();
}

/* --- PCI ------------------------------------------------------------------------------------- */

int nvmlDeviceGetTopologyCommonAncestor(Device *one, Device *two, unsigned *level) {
    if (machine("hang_ancestor")) for (;;) pause();
    if (wiring()) *level = wire(one->index, two->index).ancestor;
    else if (machine("virtual")) *level = NODE;
    else if (socket_of(one) != socket_of(two)) *level = SYSTEM;
    else if ((by_pcie() || machine("dgx1")) && !machine("pcie4") && one->index / 2 == two->index / 2) *level = SINGLE;
    else *level = NODE;
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(Device *one, Device *two, unsigned capability, unsigned *status) {
    unsigned of_pair = wiring() ? wire(one->index, two->index).p2p : 0;
    *status = of_pair ? of_pair : no_p2p() ? CHIPSET : capability >= NVLINK && !joined(one, two) ? NO : STATUS_OK;
    return SUCCESS;
}

static int mask(unsigned words, unsigned long *set, unsigned long first, unsigned long second) {
    memset(set, 0, words * sizeof *set);
    set[0] = first;
    if (words > 1) set[1] = second;
    return machine("no_numa") || machine("virtual") ? NOT_SUPPORTED : SUCCESS;
}

/* Socket 0 has CPUs 0-31 and 64-95, socket 1 the others. */
int nvmlDeviceGetCpuAffinity(Device *gpu, unsigned words, unsigned long *set) {
    unsigned long half = socket_of(gpu) ? 0xFFFFFFFF00000000ul : 0xFFFFFFFFul;
    return mask(words, set, half, half);
}

/* --- NVLink ---------------------------------------------------------------------------------- */

static int active(const Device *gpu, unsigned link) {
    if (wiring()) return wired_to(gpu, link) >= 0;
    if (machine("unbridged")) return 0;
    if (in_pairs()) return link >= 6;
    return !(machine("nvlinks_down") && gpu->index == 3 && (link == 4 || link == 11));
}

static int stained(const Device *gpu, unsigned link) {
    return gpu->index == 5 && link == 2 && (machine("link_errors") || machine("link_errors_grow"));
}

static unsigned long long errors(const Device *gpu, unsigned link) {
    static unsigned looks = 0;
    if (!stained(gpu, link)) return 0;
    return machine("link_errors_grow") ? 40 + 10 * looks++ : 3;
}

static int without_links(const Device *gpu) { return wiring() ? wired_to(gpu, 0) < 0 : by_pcie() || lonely(); }
static int beyond(const Device *gpu, unsigned link) { return wiring() ? wired_to(gpu, link) < 0 : link >= links(); }

int nvmlDeviceGetNvLinkState(Device *gpu, unsigned link, unsigned *state) {
    if (without_links(gpu)) return NOT_SUPPORTED;
    if (beyond(gpu, link)) return INVALID_ARGUMENT;
    *state = active(gpu, link);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *gpu, unsigned link, PciInfo *pci) {
    if (wiring() && wired_to(gpu, link) < SWITCH_PEER) return nvmlDeviceGetPciInfo_v3(&gpus[wired_to(gpu, link)], pci);
    if (in_pairs()) return nvmlDeviceGetPciInfo_v3(&gpus[gpu->index ^ 1], pci);
    if (machine("dgx1")) return nvmlDeviceGetPciInfo_v3(&gpus[mesh[gpu->index][link]], pci);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", 5 + link % 4);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%.12s", pci->busId + 4);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkErrorCounter(Device *gpu, unsigned link, unsigned counter, unsigned long long *count) {
    *count = counter == 1 ? errors(gpu, link) : 0;
    return SUCCESS;
}

#ifndef OLD_DRIVER

int nvmlDeviceGetMemoryAffinity(Device *gpu, unsigned words, unsigned long *set, unsigned scope) {
    (void)scope;
    return mask(words, set, 1ul << socket_of(gpu), 0);
}

int nvmlDeviceGetNumaNodeId(Device *gpu, int *node) {
    *node = machine("c2c") ? 4 + 8 * gpu->index : -1;
    return machine("c2c") ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Device *gpu, unsigned link, unsigned *type) {
    *type = wiring() ? (wired_to(gpu, link) == SWITCH_PEER ? SWITCH : GPU) : direct() ? GPU : SWITCH;
    return SUCCESS;
}

/* Replay, recovery and CRC errors, speed and state of one link (NVML_FI_DEV_NVLINK_*). */
int topology_field(const Device *gpu, FieldValue *value) {
    unsigned link = value->scopeId, of_nvlink_5 = value->fieldId >= 206 && value->fieldId <= 215;
    if (!of_nvlink_5 && (value->fieldId < 161 || value->fieldId > 165)) return 0;
    value->nvmlReturn = of_nvlink_5 || without_links(gpu) || beyond(gpu, link) ? NOT_SUPPORTED : SUCCESS;
    value->valueType = value->fieldId < 164 ? UNSIGNED_LONG_LONG : UNSIGNED_INT;
    if (value->fieldId < 164) value->value.ullVal = value->fieldId == 162 ? errors(gpu, link) : 0;
    else value->value.uiVal = value->fieldId == 164 ? 26562 : active(gpu, link);
    return 1;
}

#endif
