#include "queues.hpp"

namespace streamdsb {

namespace {

std::string named(const char* kind, uint16_t id, const Devices& devices) {
    return std::string(kind) + " queue " + std::to_string(id) + " of " + devices.name;
}

size_t ring_bytes(uint32_t slots, uint32_t slot_bytes, const std::string& name) {
    uint32_t bytes = 0;
    CHECK(name, doca_eth_rxq_estimate_packet_buf_size, DOCA_ETH_RXQ_TYPE_CYCLIC, 0, 0, slot_bytes, slots, 0, 0, 0,
          &bytes);
    return bytes;
}

Running run(doca_ctx* context, doca_gpu* gpu, const std::string& name) {
    CHECK(name, doca_ctx_set_datapath_on_gpu, context, gpu);
    CHECK(name, doca_ctx_start, context);
    return Running(context);
}

// Runs start(false), and start(true), with doorbells rung by the CPU, where the first fails.
template <typename Start>
void start_either_way(Start start) {
    std::string why;
    try {
        return start(false);
    } catch (const Error& error) {
        why = error.what();
    }
    try {
        start(true);
    } catch (const Error&) {
        throw Error(why);  // the plainer way tells more
    }
}

}  // namespace

ReceiveQueue::ReceiveQueue(const Devices& devices, uint16_t id, uint32_t slots, uint32_t slot_bytes, bool consistent)
    : id_(id),
      name_(named("receive", id, devices)),
      memory_(devices, ring_bytes(slots, slot_bytes, name_)),
      registration_(devices, memory_) {
    start_either_way([&](bool proxied) { start(devices, slots, slot_bytes, consistent, proxied); });
}

void ReceiveQueue::start(const Devices& devices, uint32_t slots, uint32_t slot_bytes, bool consistent, bool proxied) {
    running_.reset();
    queue_.reset();
    doca_eth_rxq* queue = nullptr;
    CHECK(name_, doca_eth_rxq_create, devices.nic, slots, slot_bytes, &queue);
    queue_.reset(queue);
    CHECK(name_, doca_eth_rxq_set_type, queue, DOCA_ETH_RXQ_TYPE_CYCLIC);
    CHECK(name_, doca_eth_rxq_set_pkt_buf, queue, registration_.map(), 0, uint32_t(memory_.bytes()));
    if (!consistent) CHECK(name_, doca_eth_rxq_gpu_enable_mcst_qp, queue);
    if (proxied) CHECK(name_, doca_eth_rxq_gpu_set_uar_on_cpu, queue);
    running_ = run(doca_eth_rxq_as_doca_ctx(queue), devices.gpu, name_);
    CHECK(name_, doca_eth_rxq_get_gpu_handle, queue, &handle_);
    CHECK(name_, doca_eth_rxq_apply_queue_id, queue, id_);
    if (proxied) proxy_.start(queue, doca_eth_rxq_gpu_cpu_proxy_progress);
}

streamdsb_queue ReceiveQueue::describe() const {
    return {handle_,
            memory_.address(),
            memory_.bytes(),
            registration_.key(),
            uint8_t(registration_.by_dmabuf()),
            uint8_t(proxy_.runs())};
}

SendQueue::SendQueue(const Devices& devices, uint16_t id, uint32_t descriptors, uint64_t bytes)
    : id_(id), name_(named("send", id, devices)), memory_(devices, bytes), registration_(devices, memory_) {
    uint32_t most = 0;
    CHECK(name_, doca_eth_txq_cap_get_max_burst_size, doca_dev_as_devinfo(devices.nic), 1, 0, &most);
    if (descriptors > most)
        throw Error(name_ + " was to have " + std::to_string(descriptors) + " descriptors, the card takes up to " +
                    std::to_string(most));
    start_either_way([&](bool proxied) { start(devices, descriptors, proxied); });
}

void SendQueue::start(const Devices& devices, uint32_t descriptors, bool proxied) {
    running_.reset();
    queue_.reset();
    doca_eth_txq* queue = nullptr;
    CHECK(name_, doca_eth_txq_create, devices.nic, descriptors, &queue);
    queue_.reset(queue);
    CHECK(name_, doca_eth_txq_gpu_set_completion_on_gpu, queue);
    if (proxied) CHECK(name_, doca_eth_txq_gpu_set_uar_on_cpu, queue);
    running_ = run(doca_eth_txq_as_doca_ctx(queue), devices.gpu, name_);
    CHECK(name_, doca_eth_txq_apply_queue_id, queue, id_);
    CHECK(name_, doca_eth_txq_get_gpu_handle, queue, &handle_);
    if (proxied) proxy_.start(queue, doca_eth_txq_gpu_cpu_proxy_progress);
}

streamdsb_queue SendQueue::describe() const {
    return {handle_,
            memory_.address(),
            memory_.bytes(),
            registration_.key(),
            uint8_t(registration_.by_dmabuf()),
            uint8_t(proxy_.runs())};
}

}  // namespace streamdsb
