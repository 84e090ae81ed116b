#include "memory.hpp"

#include <endian.h>
#include <unistd.h>

namespace streamdsb {

namespace {

constexpr size_t GPU_PAGE = 65536;  // dmabuf takes whole pages of the GPU

}  // namespace

GpuMemory::GpuMemory(const Devices& devices, size_t bytes)
    : gpu_(devices.gpu), bytes_((bytes + GPU_PAGE - 1) / GPU_PAGE * GPU_PAGE) {
    std::string what = std::to_string(bytes_) + " bytes of GPU memory beside " + devices.name;
    CHECK(what, doca_gpu_mem_alloc, gpu_, bytes_, GPU_PAGE, DOCA_GPU_MEM_TYPE_GPU, &address_, nullptr);
}

GpuMemory::~GpuMemory() {
    doca_gpu_mem_free(gpu_, address_);
}

Registration::Registration(const Devices& devices, const GpuMemory& memory) {
    std::string why;
    try {
        make(devices, memory, true);
        return;
    } catch (const Error& error) {
        why = error.what();
        drop();
    }
    try {
        make(devices, memory, false);
    } catch (const Error& error) {
        drop();
        throw Error(devices.name + " cannot reach GPU memory, neither by dmabuf (" + why +
                    ") nor by nvidia-peermem (" + error.what() + ")");
    }
}

Registration::~Registration() {
    drop();
}

void Registration::make(const Devices& devices, const GpuMemory& memory, bool dmabuf) {
    const std::string what = "GPU memory beside " + devices.name;
    doca_mmap* map = nullptr;
    CHECK(what, doca_mmap_create, &map);
    map_.reset(map);
    CHECK(what, doca_mmap_add_dev, map, devices.nic);
    if (dmabuf) {
        CHECK(what, doca_gpu_dmabuf_fd, devices.gpu, memory.address(), memory.bytes(), &descriptor_);
        CHECK(what, doca_mmap_set_dmabuf_memrange, map, descriptor_, memory.address(), 0, memory.bytes());
    } else {
        CHECK(what, doca_mmap_set_memrange, map, memory.address(), memory.bytes());
    }
    CHECK(what, doca_mmap_set_permissions, map,
          DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_PCI_RELAXED_ORDERING);
    CHECK(what, doca_mmap_start, map);
    uint32_t key = 0;
    CHECK(what, doca_mmap_get_mkey, map, devices.nic, &key);
    key_ = htobe32(key);
}

void Registration::drop() {
    map_.reset();
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
}

}  // namespace streamdsb
