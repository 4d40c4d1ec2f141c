// SPDX-License-Identifier: Apache-2.0
#include "net/libfabric_calls.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>

#include <array>

#include "base/format.h"

namespace cistern::net {
namespace {

// The library takes these from the environment alone. What an operator has set stays.
constexpr std::array<std::array<const char*, 2>, 5> kSettings = {{
    // Its cache keeps memory registered after we took it back, which must then go to the host, and watches
    // munmap by rewriting the C library's code.
    {"FI_MR_CACHE_MAX_COUNT", "0"},
    {"FI_MR_CACHE_MONITOR", "disabled"},
    // It makes queues for so many others, as many as a cell has, and for so many requests to each. By itself
    // it
    // asks for more entries than small devices have, and takes 2 MiB a connection for messages, of which we
    // send none.
    {"FI_UNIVERSE_SIZE", "128"},
    {"FI_OFI_RXM_MSG_TX_SIZE", "64"},
    {"FI_OFI_RXM_MSG_RX_SIZE", "8"},
}};

}  // namespace

struct SignalsKept::Handlers {
  struct Handler {
    bool known = false;
    struct sigaction action{};
  };
  std::array<Handler, NSIG> of;
};

SignalsKept::SignalsKept() : handlers_(new Handlers) {
  for (int signal = 1; signal < NSIG; ++signal) {
    Handlers::Handler& handler = handlers_->of[static_cast<std::size_t>(signal)];
    handler.known = ::sigaction(signal, nullptr, &handler.action) == 0;
  }
}

SignalsKept::~SignalsKept() {
  for (int signal = 1; signal < NSIG; ++signal) {
    const Handlers::Handler& handler = handlers_->of[static_cast<std::size_t>(signal)];
    if (handler.known && signal != SIGKILL && signal != SIGSTOP)
      (void)::sigaction(signal, &handler.action, nullptr);
  }
  delete handlers_;
}

Result<LibfabricCalls> LibfabricCalls::Load() {
  const SignalsKept signals;
  for (const auto& [name, value] : kSettings) (void)::setenv(name, value, 0);
  void* const library = ::dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr)
    return Error(Code::kMiss,
                 Text("libfabric.so.1 is not here (Debian's package libfabric1 has it): ", ::dlerror()));
  LibfabricCalls calls;
  const auto find = [&](auto& call, const char* name) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(library, name));
    return call != nullptr;
  };
  if (find(calls.getinfo, "fi_getinfo") && find(calls.freeinfo, "fi_freeinfo") &&
      find(calls.dupinfo, "fi_dupinfo") && find(calls.fabric, "fi_fabric") &&
      find(calls.strerror, "fi_strerror"))
    return calls;
  return Error(Code::kMiss, Text("libfabric.so.1 lacks a call of version 1.17: ", ::dlerror()));
}

}  // namespace cistern::net
