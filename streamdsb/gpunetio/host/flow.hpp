// DOCA Flow: which received frames go to which queue; all others stay with the kernel.
#pragma once

#include <doca_flow.h>

#include <vector>

#include "memory.hpp"

namespace streamdsb {

class FlowLibrary {
  public:
    explicit FlowLibrary(const Devices& devices);
    ~FlowLibrary() { doca_flow_destroy(); }
    FlowLibrary(const FlowLibrary&) = delete;
    FlowLibrary& operator=(const FlowLibrary&) = delete;
};

// The card's port; queues are made after it and go after it.
class FlowPort {
  public:
    explicit FlowPort(const Devices& devices);

    // Once all queues run: frames of `ethertype` that queue q's sender addressed go to queue `queues[q]`.
    void steer(uint16_t ethertype, const std::vector<uint16_t>& queues);

    uint64_t steered(size_t queue) const;

  private:
    using Pipe = Owned<doca_flow_pipe, doca_flow_pipe_destroy>;

    Pipe to_queue(uint16_t id) const;
    Pipe root() const;
    doca_flow_pipe_entry* add(uint32_t priority, const doca_flow_match& match, const doca_flow_match* mask,
                              const doca_flow_fwd& forward) const;
    void install(const std::vector<doca_flow_pipe_entry*>& entries) const;

    std::string name_;
    Owned<doca_flow_port, doca_flow_port_stop> port_;
    std::vector<Pipe> to_queues_;
    Pipe root_;  // refers to those, so goes first
    std::vector<doca_flow_pipe_entry*> counted_;
};

}  // namespace streamdsb
