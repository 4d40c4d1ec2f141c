// SPDX-License-Identifier: Apache-2.0
// Ports of loopback for nodes that a program starts.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

#include "base/fd.h"
#include "base/random.h"

namespace cistern {

// A port that nobody has, nor the one behind it. Below those that the system gives to connections, and of a
// range that few other processes draw from, so that nobody has them when a killed node comes back either.
// Another program may take it before it is used.
inline std::uint16_t FreePorts() {
  constexpr std::uint64_t kLowest = 20'000, kRanges = 100, kPorts = 120;
  static Random random(static_cast<std::uint64_t>(getpid()));
  const auto is_free = [](std::uint16_t port) {
    const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  };
  for (;;) {
    const std::uint64_t range = kLowest + static_cast<std::uint64_t>(getpid()) % kRanges * kPorts;
    const auto port = static_cast<std::uint16_t>(random.Between(range, range + kPorts - 2));
    if (is_free(port) && is_free(port + 1)) return port;
  }
}

}  // namespace cistern
