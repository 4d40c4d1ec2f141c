// SPDX-License-Identifier: Apache-2.0
// A node's settings: one table, so that a flag (--memory 4GiB), a key of the configuration file
// (memory = "4GiB") and a field of OpenOptions are one thing with one check and one message.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/slow_calls.h"
#include "cistern/options.h"
#include "cistern/status.h"
#include "mesh/role.h"
#include "policy/hand_over.h"
#include "policy/quota.h"

namespace cistern::node {

// user:UID, group:GID or any; UID and GID may be names of this host.
struct ClientRule {
  enum class Kind : std::uint8_t { kUser, kGroup, kAny };
  Kind kind = Kind::kUser;
  std::uint32_t id = 0;
  std::string text;  // as it was written
};

struct NodeOptions : OpenOptions {
  std::string socket;  // empty: no server for other processes (an embedded node)
  // PORT of 127.0.0.1, or ADDRESS:PORT, where /metrics and the like are; empty: no HTTP port.
  std::string http;
  std::vector<ClientRule> clients;  // who may connect beside processes of the node's own user
  std::string log_level = "info";
  std::uint64_t slow_calls_us = SlowCalls::kDefaultBoundUs;  // a call that takes longer is slow; 0: none is
  std::string otlp;  // where traces of slow calls go, as ParseTraceEndpoint gives it; empty: nowhere
  std::vector<policy::Quota> quotas;  // the first that a namespace matches is its own
  // ---- of a cell (docs/cell.md) ----
  std::vector<std::string> cell;  // endpoints of its etcd, as http://10.0.0.7:2379; empty: in none
  std::string cell_name = "default";
  std::string member;                  // this node's id in it
  std::string cell_address;            // where the other members reach it, as 10.0.0.7:7420
  std::string cell_listen;             // where it listens for them; empty: at cell_address
  std::vector<std::string> cell_keys;  // files; the first is used, all are accepted
  std::string cell_authority, cell_certificate, cell_certificate_key;  // files, PEM, instead of keys
  std::string zone;
  bool cell_compacts = false;         // its etcd has no other user
  std::uint64_t cell_bandwidth = 0;   // bytes a second, each way; 0: no bound
  std::size_t cell_rail_threads = 0;  // 0: as mesh::RailThreads::CountFor
  mesh::Role cell_role = mesh::Role::kEngine;
  std::vector<policy::Copies> cell_copies;                   // the first that fits a namespace counts
  std::string cell_rdma = "off";                             // or "clear", or "clear:PROVIDER"
  std::string etcd_authorities, etcd_certificate, etcd_key;  // files, PEM
  std::uint64_t linger_us = 0;  // without a client for that long, counted from the start on; 0: never
  // As ArenaOptions::huge_page_program; the node's own program, where it answers to kHugePageWord.
  std::string huge_page_program;
  // Called once, by the core's thread, which it must not keep, when the node is to end by itself: ok after it
  // lingered, an error where what it stands on is lost.
  std::function<void(const Status& why)> on_ends;
  // Called once, by the core's thread, before the first client may come: what the start waited for is over.
  std::function<void()> on_serves;
  // Where settings were given, by name: "FILE:LINE", or the flag. One that is not here has its default.
  std::map<std::string, std::string, std::less<>> origins;
};

struct Setting {
  std::string_view name;  // as a key of the file; the flag has "--" before it and '-' for '_'
  std::string_view
      value;  // what to write there, for --help: "SIZE"; empty: a switch, whose text is true or false
  std::string_view help;
  Status (*set)(NodeOptions& options, std::string_view shown, std::string_view text);
  // The value as one would write it, for people; of a list with commas.
  std::string (*get)(const NodeOptions& options);
  // A list: `set` adds to it, and this empties it. The flag may be repeated, in the file stands an array.
  void (*clear)(NodeOptions& options) = nullptr;
  // What may be written there, for --help after `help`.
  std::string (*values)() = nullptr;
  // Of a setting that a running node can change: copies it. Null: it is as it was at the start.
  void (*copy)(NodeOptions& to, const NodeOptions& from) = nullptr;
};

// What --help says of it.
std::string HelpOf(const Setting& setting);

// In the order of --help.
std::span<const Setting> NodeSettings();

// Null where there is none of that name.
const Setting* FindNodeSetting(std::string_view name);

// kInvalid for an unknown name (with the nearest one) or a value that is not allowed. `shown` is how whoever
// wrote it calls it (--memory-dir, memory_dir).
Status SetNodeOption(NodeOptions& options, std::string_view shown, std::string_view name,
                     std::string_view text);

// What a reload makes of a node's settings.
struct Reloaded {
  NodeOptions options;
  std::vector<std::string> changed;  // a sentence each: "log_level: info -> debug (cistern.toml:3)"
  // Likewise, of those that are otherwise in `read` and stay until the next start.
  std::vector<std::string> kept;
};
// Both are resolved. Everything of `read` that a running node can change, and where it was given.
Reloaded Reload(const NodeOptions& running, const NodeOptions& read);

// Applies a configuration file (TOML, flat). Messages begin with file and line.
Status ApplyConfigFile(NodeOptions& options, const std::string& path);
// The same for its text; `origin` stands for the path in messages.
Status ApplyConfigText(NodeOptions& options, std::string_view text, const std::string& origin);

inline constexpr std::uint64_t kMinMemoryBytes = 64u << 20;

// Memory of a node that is not told: a quarter of the host's, or seven eighths of what the file system of its
// directory has where that is less, so that the index fits beside (Docker gives 64 MiB of /dev/shm). From
// sizes alone and not from what is free: a restart must come to the same.
std::uint64_t DefaultMemoryBytes(std::uint64_t host_bytes, std::uint64_t file_system_bytes);

// Fills in what depends on the host (memory size and directory) and checks fields against each other and
// the host. kInvalid names the field, its value, its limit and the way out.
Status ResolveNodeOptions(NodeOptions& options);

// Of that check, what a size of memory has to do with the other settings: of a node that starts, and of one
// that is to have another size while it runs.
Status CheckMemoryBytes(const NodeOptions& options, std::uint64_t memory_bytes);

}  // namespace cistern::node
