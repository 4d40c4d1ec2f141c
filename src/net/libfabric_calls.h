// SPDX-License-Identifier: Apache-2.0
// The calls of libfabric that lie in its library, found at run time; the others it hands out as tables of
// functions. Only the .cc files of this fabric include it.
#pragma once

#include <rdma/fabric.h>

#include "cistern/status.h"

namespace cistern::net {

struct LibfabricCalls {
  // Of the interface that we ask for; the library may be newer.
  static constexpr std::uint32_t kVersion = FI_VERSION(1, 17);

  // kMiss: it is not here. Once loaded the library stays, with what its providers began in this process.
  static Result<LibfabricCalls> Load();

  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;
};

// Puts the process's handlers of signals back when it goes. Debian's libfabric loads a library that, merely
// by being loaded, takes over SIGINT, SIGTERM, SIGBUS, SIGSEGV and others.
class SignalsKept final {
 public:
  SignalsKept();
  ~SignalsKept();
  SignalsKept(const SignalsKept&) = delete;
  SignalsKept& operator=(const SignalsKept&) = delete;

 private:
  struct Handlers;
  Handlers* const handlers_;
};

}  // namespace cistern::net
