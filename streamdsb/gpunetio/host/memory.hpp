// GPU memory that the card reads and writes.
#pragma once

#include <doca_dev.h>
#include <doca_gpunetio.h>
#include <doca_mmap.h>

#include "error.hpp"

namespace streamdsb {

// What queues are made with: the card and the GPU, open.
struct Devices {
    doca_dev* nic;
    doca_gpu* gpu;
    std::string name;  // of the card, for messages
};

class GpuMemory {
  public:
    GpuMemory(const Devices& devices, size_t bytes);
    ~GpuMemory();
    GpuMemory(const GpuMemory&) = delete;
    GpuMemory& operator=(const GpuMemory&) = delete;

    void* address() const { return address_; }
    size_t bytes() const { return bytes_; }  // whole pages

  private:
    doca_gpu* gpu_;
    size_t bytes_;
    void* address_ = nullptr;
};

// The card's way to a piece of GPU memory: dmabuf where the system has it, else nvidia-peermem.
class Registration {
  public:
    Registration(const Devices& devices, const GpuMemory& memory);
    ~Registration();
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

    doca_mmap* map() const { return map_.get(); }
    bool by_dmabuf() const { return descriptor_ >= 0; }
    uint32_t key() const { return key_; }  // in network byte order

  private:
    void make(const Devices& devices, const GpuMemory& memory, bool dmabuf);
    void drop();

    int descriptor_ = -1;
    uint32_t key_ = 0;
    Owned<doca_mmap, doca_mmap_destroy> map_;
};

}  // namespace streamdsb
