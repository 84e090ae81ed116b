// Ethernet queues whose data path is on the GPU.
#pragma once

#include <doca_ctx.h>
#include <doca_eth_rxq.h>
#include <doca_eth_rxq_gpu_data_path.h>
#include <doca_eth_txq.h>
#include <doca_eth_txq_gpu_data_path.h>

#include <atomic>
#include <thread>

#include "gpunetio.h"
#include "memory.hpp"

namespace streamdsb {

// Rings doorbells for a GPU that cannot, until it goes.
class Proxy {
  public:
    template <typename Queue>
    void start(Queue* queue, doca_error_t (*progress)(Queue*)) {
        thread_ = std::thread([this, queue, progress] {
            while (!stop_.load(std::memory_order_relaxed)) progress(queue);
        });
    }
    ~Proxy() {
        stop_ = true;
        if (thread_.joinable()) thread_.join();
    }
    bool runs() const { return thread_.joinable(); }

  private:
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

// A started context stops before its queue is destroyed.
using Running = Owned<doca_ctx, doca_ctx_stop>;

class ReceiveQueue {
  public:
    ReceiveQueue(const Devices& devices, uint16_t id, uint32_t slots, uint32_t slot_bytes, bool consistent);
    streamdsb_queue describe() const;
    uint16_t id() const { return id_; }

  private:
    void start(const Devices& devices, uint32_t slots, uint32_t slot_bytes, bool consistent, bool proxied);

    uint16_t id_;
    std::string name_;
    GpuMemory memory_;
    Registration registration_;
    Owned<doca_eth_rxq, doca_eth_rxq_destroy> queue_;
    Running running_;
    Proxy proxy_;
    doca_gpu_eth_rxq* handle_ = nullptr;
};

class SendQueue {
  public:
    SendQueue(const Devices& devices, uint16_t id, uint32_t descriptors, uint64_t bytes);
    streamdsb_queue describe() const;

  private:
    void start(const Devices& devices, uint32_t descriptors, bool proxied);

    uint16_t id_;
    std::string name_;
    GpuMemory memory_;
    Registration registration_;
    Owned<doca_eth_txq, doca_eth_txq_destroy> queue_;
    Running running_;
    Proxy proxy_;
    doca_gpu_eth_txq* handle_ = nullptr;
};

}  // namespace streamdsb
