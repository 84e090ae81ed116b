#include "flow.hpp"

#include <arpa/inet.h>

namespace streamdsb {

namespace {

constexpr uint16_t PIPE_QUEUE = 0;
constexpr uint32_t COUNTERS = 64;
constexpr uint64_t INSTALL_TIMEOUT_US = 1000000;

// Byte 0 of the source address of frames of queue q: locally administered, so no other host has it.
uint8_t source_byte(size_t queue) { return uint8_t(0x02 + 16 * queue); }

using PipeConfiguration = Owned<doca_flow_pipe_cfg, doca_flow_pipe_cfg_destroy>;

PipeConfiguration configure(doca_flow_port* port, const char* title, doca_flow_pipe_type type, bool is_root,
                            const std::string& name) {
    doca_flow_pipe_cfg* made = nullptr;
    CHECK(name, doca_flow_pipe_cfg_create, &made, port);
    PipeConfiguration configuration(made);
    CHECK(name, doca_flow_pipe_cfg_set_name, made, title);
    CHECK(name, doca_flow_pipe_cfg_set_type, made, type);
    CHECK(name, doca_flow_pipe_cfg_set_is_root, made, is_root);
    return configuration;
}

}  // namespace

FlowLibrary::FlowLibrary(const Devices& devices) {
    doca_flow_cfg* made = nullptr;
    CHECK(devices.name, doca_flow_cfg_create, &made);
    Owned<doca_flow_cfg, doca_flow_cfg_destroy> configuration(made);
    CHECK(devices.name, doca_flow_cfg_set_pipe_queues, made, 1);
    CHECK(devices.name, doca_flow_cfg_set_mode_args, made, "vnf");
    CHECK(devices.name, doca_flow_cfg_set_nr_counters, made, COUNTERS);
    CHECK(devices.name, doca_flow_init, made);
}

FlowPort::FlowPort(const Devices& devices) : name_(devices.name) {
    doca_flow_port_cfg* made = nullptr;
    CHECK(name_, doca_flow_port_cfg_create, &made);
    Owned<doca_flow_port_cfg, doca_flow_port_cfg_destroy> configuration(made);
    CHECK(name_, doca_flow_port_cfg_set_port_id, made, 0);
    CHECK(name_, doca_flow_port_cfg_set_dev, made, devices.nic);
    doca_flow_port* port = nullptr;
    CHECK(name_, doca_flow_port_start, made, &port);
    port_.reset(port);
}

FlowPort::Pipe FlowPort::to_queue(uint16_t id) const {
    auto configuration = configure(port_.get(), "streamdsb queue", DOCA_FLOW_PIPE_BASIC, false, name_);
    doca_flow_match anything = {};
    CHECK(name_, doca_flow_pipe_cfg_set_match, configuration.get(), &anything, nullptr);
    doca_flow_fwd forward = {}, miss = {};
    forward.type = DOCA_FLOW_FWD_RSS;
    forward.rss_type = DOCA_FLOW_RESOURCE_TYPE_NON_SHARED;
    forward.rss.queues_array = &id;
    forward.rss.nr_queues = 1;
    miss.type = DOCA_FLOW_FWD_DROP;
    doca_flow_pipe* made = nullptr;
    CHECK(name_, doca_flow_pipe_create, configuration.get(), &forward, &miss, &made);
    Pipe pipe(made);
    doca_flow_pipe_entry* entry = nullptr;
    CHECK(name_, doca_flow_pipe_basic_add_entry, PIPE_QUEUE, made, &anything, 0, nullptr, nullptr, nullptr,
          DOCA_FLOW_ENTRY_FLAGS_NO_WAIT, nullptr, &entry);
    install({entry});
    return pipe;
}

FlowPort::Pipe FlowPort::root() const {
    auto configuration = configure(port_.get(), "streamdsb root", DOCA_FLOW_PIPE_CONTROL, true, name_);
    doca_flow_pipe* made = nullptr;
    CHECK(name_, doca_flow_pipe_create, configuration.get(), nullptr, nullptr, &made);
    return Pipe(made);
}

doca_flow_pipe_entry* FlowPort::add(uint32_t priority, const doca_flow_match& match, const doca_flow_match* mask,
                                    const doca_flow_fwd& forward) const {
    doca_flow_monitor counter = {};
    counter.counter_type = DOCA_FLOW_RESOURCE_TYPE_NON_SHARED;
    doca_flow_pipe_entry* entry = nullptr;
    CHECK(name_, doca_flow_pipe_control_add_entry, PIPE_QUEUE, root_.get(), &match, mask, nullptr, nullptr, nullptr,
          nullptr, &counter, priority, &forward, nullptr, &entry);
    return entry;
}

void FlowPort::install(const std::vector<doca_flow_pipe_entry*>& entries) const {
    CHECK(name_, doca_flow_entries_process, port_.get(), PIPE_QUEUE, INSTALL_TIMEOUT_US, uint32_t(entries.size()));
    for (doca_flow_pipe_entry* entry : entries)
        if (doca_flow_pipe_entry_get_status(entry) != DOCA_FLOW_ENTRY_STATUS_SUCCESS)
            throw Error("a steering rule of " + name_ + " was not installed by the card within " +
                        std::to_string(INSTALL_TIMEOUT_US / 1000000) + " s");
}

void FlowPort::steer(uint16_t ethertype, const std::vector<uint16_t>& queues) {
    for (uint16_t id : queues) to_queues_.push_back(to_queue(id));
    root_ = root();
    std::vector<doca_flow_pipe_entry*> entries;
    for (size_t q = 0; q < queues.size(); q++) {
        doca_flow_match match = {}, mask = {};
        doca_flow_fwd forward = {};
        match.outer.eth.type = htons(ethertype);
        match.outer.eth.src_mac[0] = source_byte(q);
        mask.outer.eth.type = 0xffff;
        mask.outer.eth.src_mac[0] = 0xff;
        forward.type = DOCA_FLOW_FWD_PIPE;
        forward.next_pipe = to_queues_[q].get();
        entries.push_back(add(0, match, &mask, forward));
    }
    doca_flow_match anything = {};
    doca_flow_fwd kernel = {};
    kernel.type = DOCA_FLOW_FWD_TARGET;
    CHECK(name_, doca_flow_get_target, DOCA_FLOW_TARGET_KERNEL, &kernel.target);
    entries.push_back(add(1, anything, nullptr, kernel));
    install(entries);
    entries.pop_back();
    counted_ = entries;
}

uint64_t FlowPort::steered(size_t queue) const {
    if (queue >= counted_.size()) throw Error("nothing is steered to receive queue " + std::to_string(queue));
    doca_flow_resource_query result = {};
    CHECK(name_, doca_flow_resource_query_entry, counted_[queue], &result);
    return result.counter.total_pkts;
}

}  // namespace streamdsb
