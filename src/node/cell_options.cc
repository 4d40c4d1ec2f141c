// SPDX-License-Identifier: Apache-2.0
#include "node/cell_options.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>

#include "admin/http_server.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "mesh/cell_keys.h"
#include "net/tcp_network.h"
#include "net/tls.h"

namespace cistern::node {
namespace {

// A second: below it few blocks come sooner than they are computed.
constexpr std::uint64_t kLeastBandwidth = 1u << 20;

struct HostAndPort {
  std::string_view host, port;
};

HostAndPort Split(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return {address, ""};
  return {address.substr(0, colon), address.substr(colon + 1)};
}

bool IsLoopback(std::string_view address) {
  const std::string_view host = Split(address).host;
  return host.starts_with("127.") || host == "[::1]";
}

bool IsInNumbers(std::string_view host) {
  in6_addr address{};
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    return ::inet_pton(AF_INET6, std::string(host.substr(1, host.size() - 2)).c_str(), &address) == 1;
  return ::inet_pton(AF_INET, std::string(host).c_str(), &address) == 1;
}

Status CheckAddress(std::string_view name, const std::string& address, bool for_others) {
  const auto wrong = [&](std::string_view why) {
    return Status(Code::kInvalid, Text(name, ": ", Shown(address), " ", why,
                                       "; give one as 10.0.0.7:7420 or [fd00::7]:7420"));
  };
  if (address.size() > mesh::kMaxAddressBytes) return wrong("is too long");
  const auto [host, port] = Split(address);
  std::uint16_t number = 0;
  const auto read = std::from_chars(port.data(), port.data() + port.size(), number);
  if (host.empty() || read.ec != std::errc() || read.ptr != port.data() + port.size() || number == 0)
    return wrong("is no address and port");
  if (number == UINT16_MAX) return wrong("leaves no port behind it, where blocks are served");
  if (!IsInNumbers(host)) return wrong("has no address in numbers: names are not looked up");
  if (for_others && (host == "0.0.0.0" || host == "[::]"))
    return wrong("is every address of this host and none that others reach");
  return Status();
}

Status CheckIsAlone(const NodeOptions& options) {
  const std::pair<std::string_view, bool> given[] = {
      {"cell_name", options.cell_name != NodeOptions().cell_name},
      {"member", !options.member.empty()},
      {"cell_address", !options.cell_address.empty()},
      {"cell_listen", !options.cell_listen.empty()},
      {"cell_key", !options.cell_keys.empty()},
      {"cell_authority", !options.cell_authority.empty()},
      {"cell_certificate", !options.cell_certificate.empty()},
      {"cell_certificate_key", !options.cell_certificate_key.empty()},
      {"zone", !options.zone.empty()},
      {"cell_compacts", options.cell_compacts},
      {"cell_bandwidth", options.cell_bandwidth > 0},
      {"cell_rail_threads", options.cell_rail_threads > 0},
      {"cell_role", options.cell_role != mesh::Role::kEngine},
      {"cell_copies", !options.cell_copies.empty()},
      {"cell_rdma", options.cell_rdma != "off"},
      {"etcd_authorities", !options.etcd_authorities.empty()},
      {"etcd_certificate", !options.etcd_certificate.empty()},
      {"etcd_key", !options.etcd_key.empty()}};
  for (const auto& [name, is_given] : given) {
    if (is_given)
      return Status(Code::kInvalid, Text(name,
                                         ": is of a cell, and cell names none; give cell the endpoints "
                                         "of its etcd, as http://10.0.0.7:2379"));
  }
  return Status();
}

// The setting that CellListens gives.
const char* NameOfListens(const NodeOptions& options) {
  return options.cell_listen.empty() ? "cell_address" : "cell_listen";
}

std::uint16_t PortOf(std::string_view address) {
  const std::string_view port = Split(address).port;
  std::uint16_t number = 0;
  (void)std::from_chars(port.data(), port.data() + port.size(), number);
  return number;
}

// Who finds the port taken would look for another process.
Status CheckHttpIsApart(const NodeOptions& options) {
  if (options.http.empty()) return Status();
  const auto http = admin::ParseHttpAddress("http", options.http);
  if (!http) return http.error();
  const std::string& listens = CellListens(options);
  const int behind = http->port - PortOf(listens);
  if (behind != 0 && behind != 1) return Status();
  const auto is_every = [](std::string_view host) { return host == "0.0.0.0" || host == "[::]"; };
  const std::string text = http->ToText();
  const std::string_view one = Split(text).host, other = Split(listens).host;
  if (one != other && !is_every(one) && !is_every(other)) return Status();
  return Status(Code::kInvalid, Text("http: port ", http->port,
                                     " is the cell's: ", behind == 0 ? "" : "the one behind that of ",
                                     NameOfListens(options), ", ", listens, "; name another"));
}

Status CheckCertificates(const NodeOptions& options) {
  const bool none = options.cell_certificate.empty();
  if (options.cell_authority.empty() != none || options.cell_certificate_key.empty() != none)
    return Status(
        Code::kInvalid,
        "cell_authority, cell_certificate and cell_certificate_key: some are given without the others");
  if (!none && !options.cell_keys.empty())
    return Status(Code::kInvalid,
                  "cell_key and cell_certificate: members prove themselves by one of them; give the cell's "
                  "nodes the same");
  return Status();
}

}  // namespace

Status AddEndpoints(std::string_view shown, std::string_view text, std::vector<std::string>& endpoints) {
  do {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view one = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const bool http = one.starts_with("http://") && one.size() > 7;
    const bool https = one.starts_with("https://") && one.size() > 8;
    if (!http && !https)
      return Status(Code::kInvalid, Text(shown, ": ", Shown(one),
                                         " is no endpoint of etcd; give each as "
                                         "http://10.0.0.7:2379 or https://..."));
    endpoints.emplace_back(one);
  } while (!text.empty());
  return Status();
}

Status CheckCellAccess(const NodeOptions& options) {
  if (Status status = mesh::ValidateMemberId(options.cell_name); !status.ok())
    return Status(Code::kInvalid, Text("cell_name: ", Shown(options.cell_name), " must be 1 to ",
                                       mesh::kMaxMemberId, " letters, digits, '-', '_' and '.'"));
  if (options.cell_keys.size() > net::TlsContext::kMaxCellKeys)
    return Status(Code::kInvalid, Text("cell_key: ", options.cell_keys.size(),
                                       " are given and a cell goes from one to the next with at most ",
                                       net::TlsContext::kMaxCellKeys));
  if (options.etcd_certificate.empty() != options.etcd_key.empty())
    return Status(Code::kInvalid, "etcd_certificate and etcd_key: one is given without the other");
  const Status etcd = EtcdOptions(options).Validate();
  return etcd.ok() ? etcd : Status(etcd.code(), Text("cell: ", etcd.message()));
}

Status CheckCellOptions(const NodeOptions& options) {
  if (options.cell.empty()) return CheckIsAlone(options);
  if (options.member.empty())
    return Status(Code::kInvalid,
                  "member: is not given; a node of a cell needs an id that no other node of it has");
  if (Status status = mesh::ValidateMemberId(options.member); !status.ok()) return status;
  if (options.zone.size() > mesh::kMaxMemberId)
    return Status(Code::kInvalid,
                  Text("zone: has ", options.zone.size(), " bytes and may have ", mesh::kMaxMemberId));
  if (options.cell_address.empty())
    return Status(Code::kInvalid,
                  "cell_address: is not given; name the address and port where the cell's other nodes reach "
                  "this one, as 10.0.0.7:7420");
  if (Status status = CheckAddress("cell_address", options.cell_address, true); !status.ok()) return status;
  if (!options.cell_listen.empty()) {
    if (Status status = CheckAddress("cell_listen", options.cell_listen, false); !status.ok()) return status;
  }
  const std::string& listens = CellListens(options);
  if (Status status = CheckCertificates(options); !status.ok()) return status;
  if (options.cell_keys.empty() && options.cell_certificate.empty() && !IsLoopback(listens))
    return Status(Code::kInvalid,
                  Text("cell_key: is not given, and whoever reaches ", listens,
                       " would be a member; make one (openssl rand -hex 32, mode 0600) and give it to every "
                       "node of the cell"));
  if (options.cell_bandwidth > 0 && options.cell_bandwidth < kLeastBandwidth)
    return Status(Code::kInvalid, Text("cell_bandwidth: ", SizeText(options.cell_bandwidth), "/s is below ",
                                       SizeText(kLeastBandwidth), "/s, the least; 0 is no bound"));
  if (options.cell_rdma != "off" && options.cell_rdma != "clear" && !options.cell_rdma.starts_with("clear:"))
    return Status(Code::kInvalid,
                  Text("cell_rdma: ", Shown(options.cell_rdma),
                       " is neither off nor clear; clear says that blocks may travel over a device for RDMA, "
                       "which does not encrypt them"));
  if (Status status = CheckHttpIsApart(options); !status.ok()) return status;
  return CheckCellAccess(options);
}

Result<std::optional<net::TlsContext>> CellTls(const NodeOptions& options,
                                               std::span<const net::CellKey> keys) {
  if (keys.empty() && options.cell_certificate.empty()) return std::nullopt;
  auto context = keys.empty()
                     ? net::TlsContext::OfCertificates(
                           {options.cell_authority, options.cell_certificate, options.cell_certificate_key})
                     : net::TlsContext::OfCellKeys(keys);
  if (!context) return Error(context.error().code(), Text("cell: ", context.error().message()));
  return std::move(*context);
}

Status CheckEtcdFiles(const NodeOptions& options) {
  return net::CheckTlsFiles({options.etcd_authorities, options.etcd_certificate, options.etcd_key},
                            {"etcd_authorities", "etcd_certificate", "etcd_key"});
}

const std::string& CellListens(const NodeOptions& options) {
  return options.cell_listen.empty() ? options.cell_address : options.cell_listen;
}

Status CannotListen(const NodeOptions& options, const Status& why) {
  const bool behind_another = why.code() == Code::kInvalid && options.cell_listen.empty();
  return Status(why.code(),
                Text("cell: listening for other members at ", NameOfListens(options), ": ", why.message(),
                     behind_another ? ", as cell_listen where the others reach it by another" : ""));
}

Status CannotListenForRails(const NodeOptions& options, const Status& why) {
  return Status(why.code(), Text("cell: listening for rails at ", RailAddress(CellListens(options)),
                                 ", the port behind ", NameOfListens(options), "'s: ", why.message()));
}

Status CheckCell(const NodeOptions& options, std::span<const net::CellKey> keys) {
  if (options.cell.empty()) return Status();
  if (const auto tls = CellTls(options, keys); !tls) return tls.error();
  if (Status etcd = CheckEtcdFiles(options); !etcd.ok()) return etcd;
  const Status listens = net::TcpNetwork::CheckListen(CellListens(options));
  if (!listens.ok()) return CannotListen(options, listens);
  const Status rails = net::TcpNetwork::CheckListen(RailAddress(CellListens(options)));
  return rails.ok() ? rails : CannotListenForRails(options, rails);
}

std::optional<net::LibfabricOptions> RdmaOptions(const NodeOptions& options) {
  constexpr std::string_view kClear = "clear";
  if (!options.cell_rdma.starts_with(kClear)) return std::nullopt;
  net::LibfabricOptions rdma;
  if (options.cell_rdma.size() > kClear.size()) rdma.provider = options.cell_rdma.substr(kClear.size() + 1);
  // Of the device that has the address where others reach this member; behind a service it has another.
  const std::string& at = CellListens(options);
  std::string host(Split(at).host);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  if (host != "0.0.0.0" && host != "::") rdma.address = std::move(host);
  return rdma;
}

Result<std::vector<net::CellKey>> ReadCellKeys(const NodeOptions& options) {
  std::vector<net::CellKey> keys;
  for (const std::string& file : options.cell_keys) {
    Result<net::CellKey> key = net::ReadCellKey(file);
    if (!key) return Error(key.error());
    keys.push_back(*key);
  }
  return keys;
}

etcd::GatewayOptions EtcdOptions(const NodeOptions& options) {
  etcd::GatewayOptions gateway;
  gateway.endpoints = options.cell;
  gateway.authorities_file = options.etcd_authorities;
  gateway.certificate_file = options.etcd_certificate;
  gateway.key_file = options.etcd_key;
  return gateway;
}

std::string RailAddress(const std::string& address) {
  return Text(Split(address).host, ":", PortOf(address) + 1);
}

std::string CellPrefix(const NodeOptions& options) { return Text("/cistern/", options.cell_name, "/"); }

}  // namespace cistern::node
