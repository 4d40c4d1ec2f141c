// SPDX-License-Identifier: Apache-2.0
// A node of another release in simulation: it runs this one's code, and what it says to other members and to
// etcd, and hears of members, is what that release would say and hear (docs/formats/wire.md, cell.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "etcd/etcd.h"
#include "net/stream.h"

namespace cistern::mesh {

enum class NodeRelease : std::uint8_t {
  kEarlier,  // leaves out what a member may leave out, and answers on rails in the order of the questions
  kThis,
  kLater,  // has fields behind each message and value; notices, questions, frames and codes of its own
  kApart,  // has no version in common with the others
};

std::string_view ToString(NodeRelease release);

// What a process of the release uses in place of its host's network: control connections by port 1, rails by
// port 2.
std::unique_ptr<net::Network> NetworkOf(NodeRelease release, std::unique_ptr<net::Network> host,
                                        std::uint64_t seed);
// And in place of its client of etcd.
std::unique_ptr<etcd::Etcd> EtcdOf(NodeRelease release, std::unique_ptr<etcd::Etcd> client);

}  // namespace cistern::mesh
