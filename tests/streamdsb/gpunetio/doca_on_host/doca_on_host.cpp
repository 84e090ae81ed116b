#include "doca_on_host.h"

#include <fcntl.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

// An object of DOCA's: what it is, and what has to outlive it.
struct Object {
    std::string kind;
    std::set<Object*> needs;
    bool runs = false;
};

std::mutex mutex;  // proxies make calls from threads of their own
std::set<Object*> live;
std::map<void*, Object*> memory;  // by address
std::vector<std::string> calls, steps;  // of all calls, those that can fail
std::string violation;
int failing = 0;
std::set<std::string> always_failing;
Object *flow = nullptr, *list = nullptr;
std::vector<doca_flow_match> steered;

void broken(const std::string& rule) {
    if (violation.empty()) violation = rule;
}

// A call that can fail; true if it is to.
bool fails(const char* call) {
    std::lock_guard<std::mutex> lock(mutex);
    calls.push_back(call);
    steps.push_back(call);
    return int(steps.size()) == failing || always_failing.count(call);
}

Object* add(const char* kind, std::set<Object*> needs = {}) {
    std::lock_guard<std::mutex> lock(mutex);
    Object* object = new Object{kind, needs};
    for (Object* needed : needs)
        if (!live.count(needed)) broken(object->kind + " made with something that is gone");
    live.insert(object);
    return object;
}

void remove(Object* object, const char* call) {
    std::lock_guard<std::mutex> lock(mutex);
    calls.push_back(call);
    if (!live.erase(object)) return broken(std::string(call) + " of what is not there");
    if (object->runs) broken(object->kind + " destroyed while it runs");
    for (Object* other : live)
        if (other->needs.count(object)) broken(object->kind + " destroyed before " + other->kind);
    delete object;
}

template <typename T>
Object* of(T* handle) {
    return reinterpret_cast<Object*>(const_cast<void*>(static_cast<const void*>(handle)));
}

template <typename T>
doca_error_t make(const char* call, T** made, const char* kind, std::set<Object*> needs = {}) {
    if (fails(call)) return DOCA_ERROR_DRIVER;
    *made = reinterpret_cast<T*>(add(kind, needs));
    return DOCA_SUCCESS;
}

}  // namespace

#define STEP (fails(__func__) ? DOCA_ERROR_DRIVER : DOCA_SUCCESS)
#define STEPS(name, ...) \
    doca_error_t name(__VA_ARGS__) { return STEP; }
#define GONE(name, type)                      \
    doca_error_t name(type* object) {         \
        remove(of(object), #name);            \
        return DOCA_SUCCESS;                  \
    }

extern "C" {

// --- for tests ---

void on_host_reset(int fail_at, const char* always) {
    live.clear(), memory.clear(), calls.clear(), steps.clear(), violation.clear(), steered.clear(), always_failing.clear();
    failing = fail_at;
    if (*always) always_failing.insert(always);
}
int on_host_calls() { return int(steps.size()); }
int on_host_first(const char* call) {
    for (size_t k = 0; k < steps.size(); k++)
        if (steps[k] == call) return int(k) + 1;
    return 0;
}
int on_host_live() { return int(live.size()); }
const char* on_host_violation() { return violation.c_str(); }
const char* on_host_log() {
    static std::string text;
    text.clear();
    for (const std::string& call : calls) text += call + "\n";
    return text.c_str();
}
int on_host_steered(int rule, int byte) {
    return rule < int(steered.size()) ? reinterpret_cast<uint8_t*>(&steered[rule].outer.eth)[byte] : -1;
}

// --- DOCA's ---

const char* doca_error_get_descr(doca_error_t) { return "Driver call failure"; }
const char* doca_error_get_name(doca_error_t) { return "DOCA_ERROR_DRIVER"; }

doca_error_t doca_devinfo_create_list(doca_devinfo*** made, uint32_t* count) {
    if (fails(__func__)) return DOCA_ERROR_DRIVER;
    static doca_devinfo* devices[2] = {reinterpret_cast<doca_devinfo*>(8), reinterpret_cast<doca_devinfo*>(16)};
    list = add("device list");
    *made = devices, *count = 2;
    return DOCA_SUCCESS;
}
doca_error_t doca_devinfo_destroy_list(doca_devinfo**) {
    remove(list, __func__);
    return DOCA_SUCCESS;
}
doca_error_t doca_devinfo_is_equal_pci_addr(const doca_devinfo* device, const char* address, uint8_t* equal) {
    *equal = device == reinterpret_cast<doca_devinfo*>(16) && !strcmp(address, "0000:17:00.0");
    return STEP;
}
doca_error_t doca_devinfo_get_mac_addr(const doca_devinfo*, uint8_t* mac, uint32_t size) {
    memcpy(mac, "\xb8\xce\xf6\x01\x02\x03", size);
    return STEP;
}
doca_error_t doca_dev_open(doca_devinfo*, doca_dev** made) { return make(__func__, made, "NIC"); }
GONE(doca_dev_close, doca_dev)
doca_devinfo* doca_dev_as_devinfo(const doca_dev*) { return reinterpret_cast<doca_devinfo*>(16); }

doca_error_t doca_gpu_create(const char*, doca_gpu** made) { return make(__func__, made, "GPU"); }
GONE(doca_gpu_destroy, doca_gpu)
doca_error_t doca_gpu_mem_alloc(doca_gpu* gpu, size_t size, size_t, doca_gpu_mem_type, void** address, void**) {
    if (fails(__func__)) return DOCA_ERROR_DRIVER;
    *address = malloc(size);
    memory[*address] = add("memory", {of(gpu)});
    return DOCA_SUCCESS;
}
doca_error_t doca_gpu_mem_free(doca_gpu*, void* address) {
    remove(memory[address], __func__);
    free(address);
    return DOCA_SUCCESS;
}
doca_error_t doca_gpu_dmabuf_fd(doca_gpu*, void*, size_t, int* descriptor) {
    if (fails(__func__)) return DOCA_ERROR_DRIVER;
    *descriptor = open("/dev/null", O_RDONLY);
    return DOCA_SUCCESS;
}
doca_error_t doca_mmap_create(doca_mmap** made) { return make(__func__, made, "mmap"); }
GONE(doca_mmap_destroy, doca_mmap)
doca_error_t doca_mmap_add_dev(doca_mmap* map, doca_dev* device) {
    of(map)->needs.insert(of(device));
    return STEP;
}
doca_error_t doca_mmap_set_memrange(doca_mmap* map, void* address, size_t) {
    of(map)->needs.insert(memory[address]);
    return STEP;
}
doca_error_t doca_mmap_set_dmabuf_memrange(doca_mmap* map, int, void* address, size_t, size_t) {
    of(map)->needs.insert(memory[address]);
    return STEP;
}
STEPS(doca_mmap_set_permissions, doca_mmap*, uint32_t)
STEPS(doca_mmap_start, doca_mmap*)
doca_error_t doca_mmap_get_mkey(const doca_mmap*, const doca_dev*, uint32_t* key) {
    *key = 0x01020304;
    return STEP;
}

doca_error_t doca_ctx_set_datapath_on_gpu(doca_ctx* context, doca_gpu* gpu) {
    of(context)->needs.insert(of(gpu));
    return STEP;
}
doca_error_t doca_ctx_start(doca_ctx* context) {
    if (fails(__func__)) return DOCA_ERROR_DRIVER;
    of(context)->runs = true;
    return DOCA_SUCCESS;
}
doca_error_t doca_ctx_stop(doca_ctx* context) {
    std::lock_guard<std::mutex> lock(mutex);
    calls.push_back(__func__);
    for (Object* other : live)
        if (of(context)->kind == "receive queue" && other->kind == "pipe") broken("queue stopped before its pipe went");
    of(context)->runs = false;
    return DOCA_SUCCESS;
}
doca_error_t doca_eth_rxq_create(doca_dev* device, uint32_t, uint32_t, doca_eth_rxq** made) {
    return make(__func__, made, "receive queue", {of(device)});
}
GONE(doca_eth_rxq_destroy, doca_eth_rxq)
STEPS(doca_eth_rxq_set_type, doca_eth_rxq*, doca_eth_rxq_type)
doca_error_t doca_eth_rxq_estimate_packet_buf_size(doca_eth_rxq_type, uint32_t, uint16_t, uint32_t size,
                                                   uint32_t slots, uint8_t, uint16_t, uint16_t, uint32_t* bytes) {
    *bytes = size * slots;
    return STEP;
}
doca_error_t doca_eth_rxq_set_pkt_buf(doca_eth_rxq* queue, doca_mmap* map, uint32_t, uint32_t) {
    of(queue)->needs.insert(of(map));
    return STEP;
}
STEPS(doca_eth_rxq_gpu_enable_mcst_qp, doca_eth_rxq*)
STEPS(doca_eth_rxq_gpu_set_uar_on_cpu, doca_eth_rxq*)
doca_error_t doca_eth_rxq_gpu_cpu_proxy_progress(doca_eth_rxq* queue) {
    if (!of(queue)->runs) broken("proxy of a queue that does not run");
    return DOCA_SUCCESS;
}
doca_ctx* doca_eth_rxq_as_doca_ctx(doca_eth_rxq* queue) { return reinterpret_cast<doca_ctx*>(queue); }
doca_error_t doca_eth_rxq_get_gpu_handle(const doca_eth_rxq* queue, doca_gpu_eth_rxq** handle) {
    *handle = reinterpret_cast<doca_gpu_eth_rxq*>(const_cast<doca_eth_rxq*>(queue));
    return STEP;
}
STEPS(doca_eth_rxq_apply_queue_id, doca_eth_rxq*, uint16_t)
doca_error_t doca_eth_txq_cap_get_max_burst_size(const doca_devinfo*, uint32_t, uint16_t, uint32_t* most) {
    *most = 8192;
    return STEP;
}
doca_error_t doca_eth_txq_create(doca_dev* device, uint32_t, doca_eth_txq** made) {
    return make(__func__, made, "send queue", {of(device)});
}
GONE(doca_eth_txq_destroy, doca_eth_txq)
STEPS(doca_eth_txq_gpu_set_completion_on_gpu, doca_eth_txq*)
STEPS(doca_eth_txq_gpu_set_uar_on_cpu, doca_eth_txq*)
doca_error_t doca_eth_txq_gpu_cpu_proxy_progress(doca_eth_txq* queue) {
    if (!of(queue)->runs) broken("proxy of a queue that does not run");
    return DOCA_SUCCESS;
}
doca_ctx* doca_eth_txq_as_doca_ctx(doca_eth_txq* queue) { return reinterpret_cast<doca_ctx*>(queue); }
doca_error_t doca_eth_txq_get_gpu_handle(const doca_eth_txq* queue, doca_gpu_eth_txq** handle) {
    *handle = reinterpret_cast<doca_gpu_eth_txq*>(const_cast<doca_eth_txq*>(queue));
    return STEP;
}
STEPS(doca_eth_txq_apply_queue_id, doca_eth_txq*, uint16_t)

doca_error_t doca_flow_cfg_create(doca_flow_cfg** made) { return make(__func__, made, "flow configuration"); }
GONE(doca_flow_cfg_destroy, doca_flow_cfg)
STEPS(doca_flow_cfg_set_pipe_queues, doca_flow_cfg*, uint16_t)
STEPS(doca_flow_cfg_set_mode_args, doca_flow_cfg*, const char*)
STEPS(doca_flow_cfg_set_nr_counters, doca_flow_cfg*, uint32_t)
doca_error_t doca_flow_init(doca_flow_cfg*) {
    if (fails(__func__)) return DOCA_ERROR_DRIVER;
    flow = add("flow library");
    return DOCA_SUCCESS;
}
void doca_flow_destroy(void) { remove(flow, __func__); }
doca_error_t doca_flow_port_cfg_create(doca_flow_port_cfg** made) { return make(__func__, made, "port configuration"); }
GONE(doca_flow_port_cfg_destroy, doca_flow_port_cfg)
STEPS(doca_flow_port_cfg_set_port_id, doca_flow_port_cfg*, uint16_t)
doca_error_t doca_flow_port_cfg_set_dev(doca_flow_port_cfg* configuration, doca_dev* device) {
    of(configuration)->needs.insert(of(device));
    return STEP;
}
doca_error_t doca_flow_port_start(const doca_flow_port_cfg* configuration, doca_flow_port** made) {
    std::set<Object*> needs = of(configuration)->needs;
    needs.insert(flow);
    return make(__func__, made, "port", needs);
}
GONE(doca_flow_port_stop, doca_flow_port)
doca_error_t doca_flow_pipe_cfg_create(doca_flow_pipe_cfg** made, doca_flow_port* port) {
    return make(__func__, made, "pipe configuration", {of(port)});
}
GONE(doca_flow_pipe_cfg_destroy, doca_flow_pipe_cfg)
STEPS(doca_flow_pipe_cfg_set_name, doca_flow_pipe_cfg*, const char*)
STEPS(doca_flow_pipe_cfg_set_type, doca_flow_pipe_cfg*, doca_flow_pipe_type)
STEPS(doca_flow_pipe_cfg_set_is_root, doca_flow_pipe_cfg*, bool)
STEPS(doca_flow_pipe_cfg_set_match, doca_flow_pipe_cfg*, const doca_flow_match*, const doca_flow_match*)
doca_error_t doca_flow_pipe_create(const doca_flow_pipe_cfg* configuration, const doca_flow_fwd*,
                                   const doca_flow_fwd*, doca_flow_pipe** made) {
    return make(__func__, made, "pipe", of(configuration)->needs);
}
void doca_flow_pipe_destroy(doca_flow_pipe* pipe) { remove(of(pipe), __func__); }
doca_error_t doca_flow_pipe_basic_add_entry(uint16_t, doca_flow_pipe*, const doca_flow_match*, uint8_t,
                                            const doca_flow_actions*, const doca_flow_monitor*, const doca_flow_fwd*,
                                            uint32_t, void*, doca_flow_pipe_entry** made) {
    *made = reinterpret_cast<doca_flow_pipe_entry*>(8);
    return STEP;
}
doca_error_t doca_flow_pipe_control_add_entry(uint16_t, doca_flow_pipe* pipe, const doca_flow_match* match,
                                              const doca_flow_match*, const doca_flow_match_condition*,
                                              const doca_flow_actions*, const doca_flow_actions*,
                                              const doca_flow_action_descs*, const doca_flow_monitor*, uint32_t,
                                              const doca_flow_fwd* forward, void*, doca_flow_pipe_entry** made) {
    if (fails(__func__)) return DOCA_ERROR_DRIVER;
    if (forward->type == DOCA_FLOW_FWD_PIPE) of(pipe)->needs.insert(of(forward->next_pipe));
    steered.push_back(*match);
    *made = reinterpret_cast<doca_flow_pipe_entry*>(8);
    return DOCA_SUCCESS;
}
STEPS(doca_flow_entries_process, doca_flow_port*, uint16_t, uint64_t, uint32_t)
doca_flow_entry_status doca_flow_pipe_entry_get_status(doca_flow_pipe_entry*) {
    return always_failing.count(__func__) ? DOCA_FLOW_ENTRY_STATUS_IN_PROCESS : DOCA_FLOW_ENTRY_STATUS_SUCCESS;
}
STEPS(doca_flow_get_target, doca_flow_target_type, doca_flow_target**)
doca_error_t doca_flow_resource_query_entry(doca_flow_pipe_entry*, doca_flow_resource_query* result) {
    result->counter.total_pkts = 5;
    return STEP;
}

STEPS(doca_log_backend_create_with_file_sdk, FILE*, doca_log_backend**)
STEPS(doca_log_backend_set_sdk_level, doca_log_backend*, uint32_t)
}
