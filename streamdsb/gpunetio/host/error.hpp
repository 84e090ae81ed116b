// A DOCA status as a sentence, and DOCA objects that are destroyed with their owners.
#pragma once

#include <doca_error.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace streamdsb {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Throws unless `status` is success; `object` says what the call was for, with its PCI address.
inline void check(doca_error_t status, const char* call, const std::string& object) {
    if (status == DOCA_SUCCESS) return;
    throw Error(std::string(call) + " for " + object + " failed: " + doca_error_get_descr(status) + " (" +
                doca_error_get_name(status) + ")");
}

// CHECK(object, call, arguments...) calls and checks.
#define CHECK(object, call, ...) ::streamdsb::check(call(__VA_ARGS__), #call, object)

template <auto destroy>
struct Destroy {
    template <typename T>
    void operator()(T* object) const {
        (void)destroy(object);  // nothing can be done about a failure while things come down
    }
};

template <typename T, auto destroy>
using Owned = std::unique_ptr<T, Destroy<destroy>>;

}  // namespace streamdsb
