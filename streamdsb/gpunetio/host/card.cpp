// The C interface, and the card that owns everything behind it.
#include <cstdlib>
#include <cstring>
#include <doca_log.h>

#include "flow.hpp"
#include "gpunetio.h"
#include "queues.hpp"

namespace streamdsb {

namespace {

thread_local std::string last_error;

using OwnedDevice = Owned<doca_dev, doca_dev_close>;
using OwnedGpu = Owned<doca_gpu, doca_gpu_destroy>;

struct DeviceList {
    doca_devinfo** devices = nullptr;
    uint32_t count = 0;
    ~DeviceList() {
        if (devices) doca_devinfo_destroy_list(devices);
    }
};

OwnedDevice open_nic(const std::string& address, const std::string& name) {
    DeviceList list;
    CHECK(name, doca_devinfo_create_list, &list.devices, &list.count);
    for (uint32_t k = 0; k < list.count; k++) {
        uint8_t equal = 0;
        CHECK(name, doca_devinfo_is_equal_pci_addr, list.devices[k], address.c_str(), &equal);
        if (!equal) continue;
        doca_dev* device = nullptr;
        CHECK(name, doca_dev_open, list.devices[k], &device);
        return OwnedDevice(device);
    }
    throw Error("DOCA finds no NIC at PCI address " + address + " among " + std::to_string(list.count) + " devices");
}

OwnedGpu open_gpu(const std::string& address) {
    doca_gpu* gpu = nullptr;
    CHECK("GPU " + address, doca_gpu_create, address.c_str(), &gpu);
    return OwnedGpu(gpu);
}

// DOCA's own log on the terminal, if STREAMDSB_DOCA_LOG is set.
void show_log() {
    static doca_log_backend* log = nullptr;
    if (!log && std::getenv("STREAMDSB_DOCA_LOG")) {
        CHECK("stderr", doca_log_backend_create_with_file_sdk, stderr, &log);
        CHECK("stderr", doca_log_backend_set_sdk_level, log, DOCA_LOG_LEVEL_INFO);
    }
}

}  // namespace

}  // namespace streamdsb

using namespace streamdsb;

// Members go in the reverse of their order, but the port before the queues: its rules lead to them.
struct streamdsb_card {
    std::string name;
    uint16_t ethertype;
    OwnedDevice nic;
    OwnedGpu gpu;
    Devices devices;
    FlowLibrary flow;
    std::vector<std::unique_ptr<ReceiveQueue>> receive_queues;
    std::vector<std::unique_ptr<SendQueue>> send_queues;
    std::unique_ptr<FlowPort> port;

    streamdsb_card(const std::string& nic_address, const std::string& gpu_address, uint16_t type)
        : name("NIC " + nic_address),
          ethertype(type),
          nic(open_nic(nic_address, name)),
          gpu(open_gpu(gpu_address)),
          devices{nic.get(), gpu.get(), name},
          flow(devices),
          port(std::make_unique<FlowPort>(devices)) {}
};

namespace {

// Runs `call`; whatever it throws becomes -1 and a sentence.
template <typename Call>
int guarded(Call call) {
    try {
        call();
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return -1;
    }
}

}  // namespace

const char* streamdsb_card_error(void) { return last_error.c_str(); }

int streamdsb_card_open(const char* nic, const char* gpu, uint16_t ethertype, streamdsb_card** card) {
    return guarded([&] {
        show_log();
        *card = new streamdsb_card(nic, gpu, ethertype);
    });
}

int streamdsb_card_mac(streamdsb_card* card, uint8_t mac[6]) {
    return guarded([&] {
        CHECK(card->name, doca_devinfo_get_mac_addr, doca_dev_as_devinfo(card->nic.get()), mac, 6);
    });
}

int streamdsb_card_receive_queue(streamdsb_card* card, uint32_t slots, uint32_t slot_bytes, int consistent,
                                 streamdsb_queue* queue) {
    return guarded([&] {
        auto id = uint16_t(card->receive_queues.size());
        card->receive_queues.push_back(
            std::make_unique<ReceiveQueue>(card->devices, id, slots, slot_bytes, consistent != 0));
        *queue = card->receive_queues.back()->describe();
    });
}

int streamdsb_card_send_queue(streamdsb_card* card, uint32_t descriptors, uint64_t bytes, streamdsb_queue* queue) {
    return guarded([&] {
        auto id = uint16_t(card->send_queues.size());
        card->send_queues.push_back(std::make_unique<SendQueue>(card->devices, id, descriptors, bytes));
        *queue = card->send_queues.back()->describe();
    });
}

int streamdsb_card_steer(streamdsb_card* card) {
    return guarded([&] {
        std::vector<uint16_t> ids;
        for (const auto& queue : card->receive_queues) ids.push_back(queue->id());
        card->port->steer(card->ethertype, ids);
    });
}

int streamdsb_card_steered(streamdsb_card* card, uint32_t queue, uint64_t* frames) {
    return guarded([&] { *frames = card->port->steered(queue); });
}

void streamdsb_card_close(streamdsb_card* card) { delete card; }
