// SPDX-License-Identifier: Apache-2.0
// What a node is told of the cell that it is to be a member of.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/status.h"
#include "etcd/gateway.h"
#include "net/libfabric.h"
#include "net/tls.h"
#include "node/options.h"

namespace cistern::node {

// Endpoints with commas between. kInvalid names one that is none.
Status AddEndpoints(std::string_view shown, std::string_view text, std::vector<std::string>& endpoints);

// kInvalid names the field, its value and the way out. A node in no cell is told nothing of one.
Status CheckCellOptions(const NodeOptions& options);

// Checks only the cell's name, its keys and the options of etcd: what a command that is no node needs.
Status CheckCellAccess(const NodeOptions& options);

// Of the files that cell_key names, in order; none of a node in no cell. kDenied: others may read one;
// kInvalid: it is no key; kIoError.
Result<std::vector<net::CellKey>> ReadCellKeys(const NodeOptions& options);

// Whether the files for an etcd with TLS can be used; kInvalid names the setting and the file.
Status CheckEtcdFiles(const NodeOptions& options);

// What the node and the other members prove themselves by: these keys, or its certificate; none where nothing
// is encrypted. kInvalid names the file that cannot be used.
Result<std::optional<net::TlsContext>> CellTls(const NodeOptions& options,
                                               std::span<const net::CellKey> keys);

// Where the node listens for the other members.
const std::string& CellListens(const NodeOptions& options);

// What the start of a cell with these keys would refuse of its certificate and of where it listens. Not
// asked: etcd.
Status CheckCell(const NodeOptions& options, std::span<const net::CellKey> keys);
// `why` Listen refused there, for other members and for their rails (the port behind).
Status CannotListen(const NodeOptions& options, const Status& why);
Status CannotListenForRails(const NodeOptions& options, const Status& why);

// How the cell's etcd is reached.
etcd::GatewayOptions EtcdOptions(const NodeOptions& options);

// Where a node serves blocks: the port behind the one of its control connections.
std::string RailAddress(const std::string& address);

// The device that reads blocks of others, which cell_rdma lets be looked for.
std::optional<net::LibfabricOptions> RdmaOptions(const NodeOptions& options);

// Under which the cell's keys lie in etcd.
std::string CellPrefix(const NodeOptions& options);

}  // namespace cistern::node
