// SPDX-License-Identifier: Apache-2.0
// A real etcd, from kOldestVersion on, by the JSON gateway that every etcd has beside gRPC
// (docs/decisions/0013-etcd-by-its-json-gateway.md).
//
// Endpoints of one cluster are asked in turn: the one that answered last first, another once it cannot be
// reached or, for what may be asked twice, does not answer within its part of the deadline. A transaction and
// a grant are sent at most once. kTooLate before the deadline: the connection broke, or etcd gave up (it has
// no leader); ask again after a pause.
//
// A watch has a connection of its own and ends with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "etcd/etcd.h"
#include "io/loop.h"

namespace cistern::etcd {

struct GatewayOptions {
  std::vector<std::string> endpoints;      // each as http://10.0.0.7:2379 or https://etcd.example:2379
  std::string authorities_file;            // of certificates, PEM, for https; empty: the system's
  std::string certificate_file, key_file;  // who this is to etcd, PEM; empty: it does not ask
  std::string user, password;              // of etcd's own login; empty: it does not ask
  std::int64_t connect_us = 2'000'000;     // to an endpoint, at most

  Status Validate() const;
};

// Calls under way, past which they are kBusy: each has a connection.
inline constexpr std::size_t kMaxGatewayCalls = 128;

// The loop is borrowed and outlives it; it outlives its calls and watches. Nothing is asked before the first
// call. kInvalid: an option, or a file that cannot be read.
Result<std::unique_ptr<Etcd>> OpenGateway(io::Loop& loop, GatewayOptions options);

}  // namespace cistern::etcd
