// Enough of DOCA's host API to run the host part of transport gpunetio without DOCA or a card: the calls are DOCA's,
// they only keep account of objects, in which order these come and go, and fail where a test wants it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>

enum doca_error_t { DOCA_SUCCESS = 0, DOCA_ERROR_NOT_FOUND = 15, DOCA_ERROR_DRIVER = 21 };
extern "C" {
const char* doca_error_get_descr(doca_error_t);
const char* doca_error_get_name(doca_error_t);

struct doca_devinfo; struct doca_dev; struct doca_gpu; struct doca_mmap; struct doca_ctx;
struct doca_eth_rxq; struct doca_eth_txq; struct doca_gpu_eth_rxq; struct doca_gpu_eth_txq;
struct doca_flow_cfg; struct doca_flow_port_cfg; struct doca_flow_port; struct doca_flow_pipe_cfg;
struct doca_flow_pipe; struct doca_flow_pipe_entry; struct doca_flow_target; struct doca_log_backend;

// devices
doca_error_t doca_devinfo_create_list(doca_devinfo***, uint32_t*);
doca_error_t doca_devinfo_destroy_list(doca_devinfo**);
doca_error_t doca_devinfo_is_equal_pci_addr(const doca_devinfo*, const char*, uint8_t*);
doca_error_t doca_devinfo_get_mac_addr(const doca_devinfo*, uint8_t*, uint32_t);
doca_error_t doca_dev_open(doca_devinfo*, doca_dev**);
doca_error_t doca_dev_close(doca_dev*);
doca_devinfo* doca_dev_as_devinfo(const doca_dev*);

// GPU and memory
enum doca_gpu_mem_type { DOCA_GPU_MEM_TYPE_GPU };
enum { DOCA_ACCESS_FLAG_LOCAL_READ_WRITE = 1, DOCA_ACCESS_FLAG_PCI_RELAXED_ORDERING = 64 };
doca_error_t doca_gpu_create(const char*, doca_gpu**);
doca_error_t doca_gpu_destroy(doca_gpu*);
doca_error_t doca_gpu_mem_alloc(doca_gpu*, size_t, size_t, doca_gpu_mem_type, void**, void**);
doca_error_t doca_gpu_mem_free(doca_gpu*, void*);
doca_error_t doca_gpu_dmabuf_fd(doca_gpu*, void*, size_t, int*);
doca_error_t doca_mmap_create(doca_mmap**);
doca_error_t doca_mmap_destroy(doca_mmap*);
doca_error_t doca_mmap_add_dev(doca_mmap*, doca_dev*);
doca_error_t doca_mmap_set_memrange(doca_mmap*, void*, size_t);
doca_error_t doca_mmap_set_dmabuf_memrange(doca_mmap*, int, void*, size_t, size_t);
doca_error_t doca_mmap_set_permissions(doca_mmap*, uint32_t);
doca_error_t doca_mmap_start(doca_mmap*);
doca_error_t doca_mmap_get_mkey(const doca_mmap*, const doca_dev*, uint32_t*);

// queues
enum doca_eth_rxq_type { DOCA_ETH_RXQ_TYPE_CYCLIC };
doca_error_t doca_ctx_set_datapath_on_gpu(doca_ctx*, doca_gpu*);
doca_error_t doca_ctx_start(doca_ctx*);
doca_error_t doca_ctx_stop(doca_ctx*);
doca_error_t doca_eth_rxq_create(doca_dev*, uint32_t, uint32_t, doca_eth_rxq**);
doca_error_t doca_eth_rxq_destroy(doca_eth_rxq*);
doca_error_t doca_eth_rxq_set_type(doca_eth_rxq*, doca_eth_rxq_type);
doca_error_t doca_eth_rxq_estimate_packet_buf_size(doca_eth_rxq_type, uint32_t, uint16_t, uint32_t, uint32_t, uint8_t,
                                                   uint16_t, uint16_t, uint32_t*);
doca_error_t doca_eth_rxq_set_pkt_buf(doca_eth_rxq*, doca_mmap*, uint32_t, uint32_t);
doca_error_t doca_eth_rxq_gpu_enable_mcst_qp(doca_eth_rxq*);
doca_error_t doca_eth_rxq_gpu_set_uar_on_cpu(doca_eth_rxq*);
doca_error_t doca_eth_rxq_gpu_cpu_proxy_progress(doca_eth_rxq*);
doca_ctx* doca_eth_rxq_as_doca_ctx(doca_eth_rxq*);
doca_error_t doca_eth_rxq_get_gpu_handle(const doca_eth_rxq*, doca_gpu_eth_rxq**);
doca_error_t doca_eth_rxq_apply_queue_id(doca_eth_rxq*, uint16_t);
doca_error_t doca_eth_txq_cap_get_max_burst_size(const doca_devinfo*, uint32_t, uint16_t, uint32_t*);
doca_error_t doca_eth_txq_create(doca_dev*, uint32_t, doca_eth_txq**);
doca_error_t doca_eth_txq_destroy(doca_eth_txq*);
doca_error_t doca_eth_txq_gpu_set_completion_on_gpu(doca_eth_txq*);
doca_error_t doca_eth_txq_gpu_set_uar_on_cpu(doca_eth_txq*);
doca_error_t doca_eth_txq_gpu_cpu_proxy_progress(doca_eth_txq*);
doca_ctx* doca_eth_txq_as_doca_ctx(doca_eth_txq*);
doca_error_t doca_eth_txq_get_gpu_handle(const doca_eth_txq*, doca_gpu_eth_txq**);
doca_error_t doca_eth_txq_apply_queue_id(doca_eth_txq*, uint16_t);

// steering
enum doca_flow_pipe_type { DOCA_FLOW_PIPE_BASIC, DOCA_FLOW_PIPE_CONTROL };
enum doca_flow_fwd_type { DOCA_FLOW_FWD_NONE, DOCA_FLOW_FWD_RSS, DOCA_FLOW_FWD_PIPE, DOCA_FLOW_FWD_DROP,
                          DOCA_FLOW_FWD_TARGET };
enum doca_flow_resource_type { DOCA_FLOW_RESOURCE_TYPE_NONE, DOCA_FLOW_RESOURCE_TYPE_NON_SHARED };
enum doca_flow_target_type { DOCA_FLOW_TARGET_KERNEL };
enum doca_flow_entry_status { DOCA_FLOW_ENTRY_STATUS_IN_PROCESS, DOCA_FLOW_ENTRY_STATUS_SUCCESS };
enum { DOCA_FLOW_ENTRY_FLAGS_NO_WAIT = 0 };
struct doca_flow_match { struct { struct { uint8_t src_mac[6], dst_mac[6]; uint16_t type; } eth; } outer; };
struct doca_flow_monitor { doca_flow_resource_type counter_type; };
struct doca_flow_resource_query { struct { uint64_t total_bytes, total_pkts; } counter; };
struct doca_flow_fwd {
    doca_flow_fwd_type type;
    doca_flow_resource_type rss_type;
    struct { uint16_t* queues_array; int nr_queues; } rss;
    doca_flow_pipe* next_pipe;
    doca_flow_target* target;
};
struct doca_flow_match_condition; struct doca_flow_actions; struct doca_flow_action_descs;
doca_error_t doca_flow_cfg_create(doca_flow_cfg**);
doca_error_t doca_flow_cfg_destroy(doca_flow_cfg*);
doca_error_t doca_flow_cfg_set_pipe_queues(doca_flow_cfg*, uint16_t);
doca_error_t doca_flow_cfg_set_mode_args(doca_flow_cfg*, const char*);
doca_error_t doca_flow_cfg_set_nr_counters(doca_flow_cfg*, uint32_t);
doca_error_t doca_flow_init(doca_flow_cfg*);
void doca_flow_destroy(void);
doca_error_t doca_flow_port_cfg_create(doca_flow_port_cfg**);
doca_error_t doca_flow_port_cfg_destroy(doca_flow_port_cfg*);
doca_error_t doca_flow_port_cfg_set_port_id(doca_flow_port_cfg*, uint16_t);
doca_error_t doca_flow_port_cfg_set_dev(doca_flow_port_cfg*, doca_dev*);
doca_error_t doca_flow_port_start(const doca_flow_port_cfg*, doca_flow_port**);
doca_error_t doca_flow_port_stop(doca_flow_port*);
doca_error_t doca_flow_pipe_cfg_create(doca_flow_pipe_cfg**, doca_flow_port*);
doca_error_t doca_flow_pipe_cfg_destroy(doca_flow_pipe_cfg*);
doca_error_t doca_flow_pipe_cfg_set_name(doca_flow_pipe_cfg*, const char*);
doca_error_t doca_flow_pipe_cfg_set_type(doca_flow_pipe_cfg*, doca_flow_pipe_type);
doca_error_t doca_flow_pipe_cfg_set_is_root(doca_flow_pipe_cfg*, bool);
doca_error_t doca_flow_pipe_cfg_set_match(doca_flow_pipe_cfg*, const doca_flow_match*, const doca_flow_match*);
doca_error_t doca_flow_pipe_create(const doca_flow_pipe_cfg*, const doca_flow_fwd*, const doca_flow_fwd*,
                                   doca_flow_pipe**);
void doca_flow_pipe_destroy(doca_flow_pipe*);
doca_error_t doca_flow_pipe_basic_add_entry(uint16_t, doca_flow_pipe*, const doca_flow_match*, uint8_t,
                                            const doca_flow_actions*, const doca_flow_monitor*, const doca_flow_fwd*,
                                            uint32_t, void*, doca_flow_pipe_entry**);
doca_error_t doca_flow_pipe_control_add_entry(uint16_t, doca_flow_pipe*, const doca_flow_match*,
                                              const doca_flow_match*, const doca_flow_match_condition*,
                                              const doca_flow_actions*, const doca_flow_actions*,
                                              const doca_flow_action_descs*, const doca_flow_monitor*, uint32_t,
                                              const doca_flow_fwd*, void*, doca_flow_pipe_entry**);
doca_error_t doca_flow_entries_process(doca_flow_port*, uint16_t, uint64_t, uint32_t);
doca_flow_entry_status doca_flow_pipe_entry_get_status(doca_flow_pipe_entry*);
doca_error_t doca_flow_get_target(doca_flow_target_type, doca_flow_target**);
doca_error_t doca_flow_resource_query_entry(doca_flow_pipe_entry*, doca_flow_resource_query*);

// log
enum { DOCA_LOG_LEVEL_INFO = 50 };
doca_error_t doca_log_backend_create_with_file_sdk(FILE*, doca_log_backend**);
doca_error_t doca_log_backend_set_sdk_level(doca_log_backend*, uint32_t);
}
