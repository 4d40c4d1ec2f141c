// SPDX-License-Identifier: Apache-2.0
#include "node/options.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "admin/http_server.h"
#include "admin/trace_sender.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/policy.h"
#include "base/units.h"
#include "memory/host_memory.h"
#include "node/cell_options.h"
#include "node/client_rules.h"
#include "node/flash_options.h"

namespace cistern::node {
namespace {

constexpr std::size_t kMaxTenantBytes = 32;
constexpr std::uint64_t kMaxSlowCallUs = 3'600'000'000;

template <class T>
Status Keep(Result<std::uint64_t> value, T& field) {
  if (!value) return value.error();
  field = static_cast<T>(*value);
  return Status();
}

template <class T>
Status KeepPolicy(std::string_view name, Result<T> policy, T& field) {
  if (!policy) return Status(policy.error().code(), Text(name, ": ", policy.error().message()));
  field = *policy;
  return Status();
}

Status OneOf(std::string_view name, std::string_view text, std::span<const std::string_view> known,
             std::string& field) {
  for (std::string_view one : known) {
    if (one == text) {
      field = text;
      return Status();
    }
  }
  return Status(Code::kInvalid, UnknownName(Text("value of ", name), text, known));
}

Status ParseSwitch(std::string_view name, std::string_view text, bool& on) {
  if (text != "true" && text != "false")
    return Status(Code::kInvalid, Text(name, ": \"", Shown(text), "\" is neither true nor false"));
  on = text == "true";
  return Status();
}

constexpr std::array<std::string_view, 3> kLoops = {"auto", "io_uring", "epoll"};
constexpr std::array<std::string_view, 4> kLogLevels = {"debug", "info", "warning", "error"};

std::string VolumeText(const FlashVolume& volume) {
  return volume.size_bytes == 0 ? volume.path : volume.path + ":" + SizeText(volume.size_bytes);
}

// Of a list or a text that may be empty.
std::string OrNone(std::string text) { return text.empty() ? "none" : text; }

Status AddQuota(NodeOptions& options, std::string_view text) {
  Result<policy::Quota> quota = policy::ParseQuota(text);
  if (!quota) return quota.error();
  if (std::ranges::find(options.quotas, quota->pattern, &policy::Quota::pattern) != options.quotas.end())
    return Status(Code::kInvalid, Text("quota: ", Shown(quota->pattern),
                                       " is given twice, and the first alone counts; "
                                       "give all of its sizes in one"));
  if (options.quotas.size() == policy::kMaxQuotas)
    return Status(Code::kInvalid, Text("quota: ", Shown(text), " is one more than ", policy::kMaxQuotas,
                                       ", which are the most: one pattern may stand for several namespaces"));
  options.quotas.push_back(std::move(*quota));
  return Status();
}

// A setting that is a text as it was written.
template <auto kField>
Status SetText(NodeOptions& options, std::string_view, std::string_view text) {
  options.*kField = text;
  return Status();
}
template <auto kField>
std::string TextOf(const NodeOptions& options) {
  return options.*kField;
}

constexpr Setting kSettings[] = {
    {"memory", "SIZE",
     "memory for KV blocks; default: a quarter of the cgroup's or the host's, or 7/8 of what the file "
     "system of memory_dir has, if that is less",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       const Result<std::uint64_t> size = ParseSize(n, t);
       if (size && *size == 0)
         return Status(Code::kInvalid, Text(n, ": is zero; leave it out for the default, or say how much"));
       return Keep(size, o.memory_bytes);
     },
     [](const NodeOptions& o) { return SizeText(o.memory_bytes); }, nullptr, nullptr,
     [](NodeOptions& to, const NodeOptions& from) { to.memory_bytes = from.memory_bytes; }},
    {"memory_dir", "DIR", "where arenas live, on a tmpfs; default: /dev/shm/cistern-UID",
     SetText<&NodeOptions::memory_dir>, TextOf<&NodeOptions::memory_dir>},
    {"socket", "PATH",
     "unix socket that clients connect to; default: cistern.sock in /run (root), else in /run/user/UID "
     "while it is there, else in /tmp/cistern-UID; a client looks at both",
     SetText<&NodeOptions::socket>, TextOf<&NodeOptions::socket>},
    {"clients", "WHO",
     "who may connect beside processes of the node's own user: user:UID, group:GID (numbers or names), or "
     "any that reaches the socket; may be repeated",
     [](NodeOptions& o, std::string_view n, std::string_view t) { return AddClientRule(n, t, o.clients); },
     [](const NodeOptions& o) { return OrNone(Joined(o.clients, ", ", &ClientRule::text)); },
     [](NodeOptions& o) { o.clients.clear(); }},
    {"http", "[ADDRESS:]PORT",
     "where /metrics, /status, /healthz and /readyz are, for whoever reaches it; default: none; a PORT "
     "alone: of 127.0.0.1",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       o.http = t == "none" ? "" : t;
       const Result<admin::HttpAddress> address = admin::ParseHttpAddress(n, t == "none" ? "0" : t);
       return address ? Status() : address.error();
     },
     [](const NodeOptions& o) { return o.http.empty() ? "none" : o.http; }},
    {"tenant", "NAME", "the trust boundary that this node serves; default: default",
     SetText<&NodeOptions::tenant>, TextOf<&NodeOptions::tenant>},
    {"alignment", "SIZE", "of records, 512B or 4096B, fixed when the arena is created; default: 4KiB",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       const Result<std::uint64_t> size = ParseSize(n, t);
       if (!size || (*size != 512 && *size != 4096))
         return Status(Code::kInvalid, Text(n, ": ", Shown(t), " is not allowed; use 512B or 4096B"));
       return Keep(size, o.alignment);
     },
     [](const NodeOptions& o) { return SizeText(o.alignment); }},
    {"max_blocks", "N", "blocks in memory at most; default: what fits",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return Keep(ParseCount(n, t, 1, UINT32_MAX), o.max_blocks);
     },
     [](const NodeOptions& o) { return o.max_blocks == 0 ? std::string("what fits") : Text(o.max_blocks); }},
    {"quota", "PATTERN:SIZES",
     "bytes of blocks that namespaces of this name, or FIELD=VALUE, may have together, and that stay when "
     "others need room: memory=SIZE,reserve=SIZE,flash=SIZE,flash_reserve=SIZE, one of them or more; * "
     "stands for "
     "any characters; may be repeated, the first that fits counts",
     [](NodeOptions& o, std::string_view, std::string_view t) { return AddQuota(o, t); },
     [](const NodeOptions& o) { return OrNone(Joined(o.quotas, "; ", policy::ToString)); },
     [](NodeOptions& o) { o.quotas.clear(); }, nullptr,
     [](NodeOptions& to, const NodeOptions& from) { to.quotas = from.quotas; }},
    {"eviction", "POLICY", "which block leaves memory next",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return KeepPolicy(n, ParseEvictionPolicy(t), o.eviction);
     },
     [](const NodeOptions& o) { return std::string(ToString(o.eviction)); }, nullptr,
     [] { return PolicyHelp(OpenOptions().eviction); }},
    {"movers", "N", "threads that move bytes, of each memory node; default: 1",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return Keep(ParseCount(n, t, 1, 64), o.movers);
     },
     [](const NodeOptions& o) { return Text(o.movers); }},
    {"poll", "DURATION", "core and movers poll this long before they sleep; default: 50us",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       Result<std::uint64_t> us = ParseDurationUs(n, t);
       if (us && *us > 1'000'000) {
         return Status(Code::kInvalid, Text(n, ": ", t, " is over the limit of 1s; use at most 1s"));
       }
       return Keep(us, o.poll_us);
     },
     [](const NodeOptions& o) { return DurationText(o.poll_us); }},
    {"linger", "DURATION", "ends this long after its last client left, or after its start; default: never",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return Keep(ParseDurationUs(n, t), o.linger_us);
     },
     [](const NodeOptions& o) { return o.linger_us == 0 ? std::string("never") : DurationText(o.linger_us); },
     nullptr, nullptr, [](NodeOptions& to, const NodeOptions& from) { to.linger_us = from.linger_us; }},
    {"flash", "PATH[:SIZE]",
     "flash below memory: a directory and how much of it, or a block device; may be repeated",
     [](NodeOptions& o, std::string_view n, std::string_view t) { return AddFlashVolume(n, t, o.flash); },
     [](const NodeOptions& o) { return OrNone(Joined(o.flash, ", ", VolumeText)); },
     [](NodeOptions& o) { o.flash.clear(); }},
    {"flash_write", "POLICY", "when a block is written to flash where its namespace does not say",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return KeepPolicy(n, ParseWriteRule(t), o.flash_write);
     },
     [](const NodeOptions& o) { return ToString(o.flash_write); }, nullptr,
     [] { return PolicyHelp(OpenOptions().flash_write); },
     [](NodeOptions& to, const NodeOptions& from) { to.flash_write = from.flash_write; }},
    {"flash_admit", "POLICY", "which blocks, where their namespace does not say",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return KeepPolicy(n, ParseAdmission(t), o.flash_admit);
     },
     [](const NodeOptions& o) { return std::string(ToString(o.flash_admit)); }, nullptr,
     [] { return PolicyHelp(OpenOptions().flash_admit); },
     [](NodeOptions& to, const NodeOptions& from) { to.flash_admit = from.flash_admit; }},
    {"flash_promote", "POLICY", "which blocks stay in memory once they were read from flash",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return KeepPolicy(n, ParsePromotion(t), o.flash_promote);
     },
     [](const NodeOptions& o) { return std::string(ToString(o.flash_promote)); }, nullptr,
     [] { return PolicyHelp(OpenOptions().flash_promote); },
     [](NodeOptions& to, const NodeOptions& from) { to.flash_promote = from.flash_promote; }},
    {"flash_budget", "SIZE/day", "endurance: bytes written to flash a day at most; default: no limit",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return Keep(ParseBudget(n, t), o.flash_budget_bytes_a_day);
     },
     [](const NodeOptions& o) {
       return o.flash_budget_bytes_a_day == 0 ? std::string("no limit")
                                              : SizeText(o.flash_budget_bytes_a_day) + "/day";
     },
     nullptr, nullptr,
     [](NodeOptions& to, const NodeOptions& from) {
       to.flash_budget_bytes_a_day = from.flash_budget_bytes_a_day;
     }},
    {"flash_read_ahead", "SIZE",
     "what is read ahead of a chain that was matched; 0B: nothing; default: 16MiB",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return Keep(ParseSize(n, t), o.flash_read_ahead_bytes);
     },
     [](const NodeOptions& o) { return SizeText(o.flash_read_ahead_bytes); }, nullptr, nullptr,
     [](NodeOptions& to, const NodeOptions& from) {
       to.flash_read_ahead_bytes = from.flash_read_ahead_bytes;
     }},
    {"journal_dir", "DIR",
     "where the journal lies, which flash needs: durable, and not shared; default: the first --flash "
     "directory",
     SetText<&NodeOptions::journal_dir>, TextOf<&NodeOptions::journal_dir>},
    {"discard_foreign", "", "overwrite what --flash names, whatever it holds",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return ParseSwitch(n, t, o.discard_foreign);
     },
     [](const NodeOptions& o) { return Text(o.discard_foreign); }},
    {"scrub", "SIZE/s", "read again and checked in the background; 0: never; default: 8MiB/s",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return Keep(ParseBytesASecond(n, t, "never"), o.scrub_bytes_per_s);
     },
     [](const NodeOptions& o) {
       return o.scrub_bytes_per_s == 0 ? std::string("never") : SizeText(o.scrub_bytes_per_s) + "/s";
     },
     nullptr, nullptr,
     [](NodeOptions& to, const NodeOptions& from) { to.scrub_bytes_per_s = from.scrub_bytes_per_s; }},
    {"cell", "URL[,URL]",
     "the cell's etcd: drops reach every node of the cell; may be repeated; default: none",
     [](NodeOptions& o, std::string_view n, std::string_view t) { return AddEndpoints(n, t, o.cell); },
     [](const NodeOptions& o) { return OrNone(Joined(o.cell, ",")); },
     [](NodeOptions& o) { o.cell.clear(); }},
    {"cell_name", "NAME", "which cell of that etcd; default: default", SetText<&NodeOptions::cell_name>,
     TextOf<&NodeOptions::cell_name>},
    {"member", "ID", "this node in the cell, which no other node is", SetText<&NodeOptions::member>,
     TextOf<&NodeOptions::member>},
    {"cell_address", "ADDRESS:PORT", "where the cell's other nodes reach this one",
     SetText<&NodeOptions::cell_address>, TextOf<&NodeOptions::cell_address>},
    {"cell_listen", "ADDRESS:PORT", "where it listens for them; default: cell_address",
     SetText<&NodeOptions::cell_listen>, TextOf<&NodeOptions::cell_listen>},
    {"cell_key", "FILE",
     "the cell's key, 64 hexadecimal digits that its owner alone may read; may be repeated: the first is "
     "used, each accepted",
     [](NodeOptions& o, std::string_view, std::string_view t) {
       o.cell_keys.emplace_back(t);
       return Status();
     },
     [](const NodeOptions& o) { return OrNone(Joined(o.cell_keys, ",")); },
     [](NodeOptions& o) { o.cell_keys.clear(); }},
    {"cell_authority", "FILE",
     "instead of a cell_key: the certificate, PEM, of the cell's own authority; who has one of its "
     "certificates is a member",
     SetText<&NodeOptions::cell_authority>, TextOf<&NodeOptions::cell_authority>},
    {"cell_certificate", "FILE",
     "this node's certificate for the other members, with what leads to the authority",
     SetText<&NodeOptions::cell_certificate>, TextOf<&NodeOptions::cell_certificate>},
    {"cell_certificate_key", "FILE", "the private key of that, P-256 or Ed25519, without a passphrase",
     SetText<&NodeOptions::cell_certificate_key>, TextOf<&NodeOptions::cell_certificate_key>},
    {"zone", "NAME", "where it stands; `cistern cell` shows it; default: none", SetText<&NodeOptions::zone>,
     TextOf<&NodeOptions::zone>},
    {"cell_compacts", "", "the cell's etcd has no other user, so that the cell may compact it",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return ParseSwitch(n, t, o.cell_compacts);
     },
     [](const NodeOptions& o) { return Text(o.cell_compacts); }},
    {"cell_bandwidth", "SIZE/s",
     "what other nodes read from this one at most, and as much again what it reads from them; 0: no bound; "
     "default: 0",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return Keep(ParseBytesASecond(n, t, "no bound"), o.cell_bandwidth);
     },
     [](const NodeOptions& o) {
       return o.cell_bandwidth == 0 ? std::string("0") : SizeText(o.cell_bandwidth) + "/s";
     }},
    {"cell_rail_threads", "N",
     "threads that carry blocks to other nodes and from them, some 4 GB/s each, at most 16; 0: one for each "
     "four "
     "processors, at most four; default: 0",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return Keep(ParseCount(n, t, 0, 16), o.cell_rail_threads);
     },
     [](const NodeOptions& o) { return Text(o.cell_rail_threads); }},
    {"cell_role", "engine|store",
     "store: room for what leaves the other nodes, for a node that no engine uses; default: engine",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       if (t != "engine" && t != "store")
         return Status(Code::kInvalid, Text(n, ": ", Shown(t), " is neither engine nor store"));
       o.cell_role = t == "store" ? mesh::Role::kStore : mesh::Role::kEngine;
       return Status();
     },
     [](const NodeOptions& o) { return std::string(mesh::ToString(o.cell_role)); }},
    {"cell_copies", "[PATTERN:]N",
     "nodes that are to have a block that is put here, this one too, the others in the background: of "
     "namespaces of this name, or FIELD=VALUE, or of all; may be repeated, the first that fits counts; "
     "default: 1",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       Result<policy::Copies> copies = policy::ParseCopies(t);
       if (!copies) return Status(copies.error().code(), Text(n, ": ", copies.error().message()));
       o.cell_copies.push_back(std::move(*copies));
       return Status();
     },
     [](const NodeOptions& o) {
       return o.cell_copies.empty() ? std::string("1") : Joined(o.cell_copies, "; ", policy::CopiesText);
     },
     [](NodeOptions& o) { o.cell_copies.clear(); }, nullptr,
     [](NodeOptions& to, const NodeOptions& from) { to.cell_copies = from.cell_copies; }},
    {"cell_rdma", "off|clear[:PROVIDER]",
     "clear: blocks of others are read from their memory by a device for RDMA where both have one, not "
     "encrypted; default: off",
     SetText<&NodeOptions::cell_rdma>, TextOf<&NodeOptions::cell_rdma>},
    {"etcd_authorities", "FILE",
     "of an etcd with https: its authorities' certificates; default: the system's",
     SetText<&NodeOptions::etcd_authorities>, TextOf<&NodeOptions::etcd_authorities>},
    {"etcd_certificate", "FILE", "this node's certificate for etcd", SetText<&NodeOptions::etcd_certificate>,
     TextOf<&NodeOptions::etcd_certificate>},
    {"etcd_key", "FILE", "the private key of that, without a passphrase", SetText<&NodeOptions::etcd_key>,
     TextOf<&NodeOptions::etcd_key>},
    {"loop", "NAME", "auto, io_uring or epoll; default: auto",
     [](NodeOptions& o, std::string_view n, std::string_view t) { return OneOf(n, t, kLoops, o.loop); },
     [](const NodeOptions& o) { return o.loop; }},
    {"log_level", "LEVEL", "debug, info, warning or error; default: info",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       return OneOf(n, t, kLogLevels, o.log_level);
     },
     [](const NodeOptions& o) { return o.log_level; }, nullptr, nullptr,
     [](NodeOptions& to, const NodeOptions& from) { to.log_level = from.log_level; }},
    {"slow_calls", "DURATION",
     "a call that takes longer is logged with where its time went, and counted; 0s: none; default: 100ms",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       Result<std::uint64_t> us = ParseDurationUs(n, t);
       if (us && *us > kMaxSlowCallUs)
         return Status(Code::kInvalid, Text(n, ": ", t, " is over the limit of 1h; use at most 1h, or 0s"));
       return Keep(us, o.slow_calls_us);
     },
     [](const NodeOptions& o) { return DurationText(o.slow_calls_us); }, nullptr, nullptr,
     [](NodeOptions& to, const NodeOptions& from) { to.slow_calls_us = from.slow_calls_us; }},
    {"otlp", "URL",
     "a collector of traces that slow calls are sent to, by OTLP over HTTP: http://127.0.0.1:4318; default: "
     "none",
     [](NodeOptions& o, std::string_view n, std::string_view t) {
       if (t == "none") {
         o.otlp.clear();
         return Status();
       }
       Result<std::string> endpoint = admin::ParseTraceEndpoint(n, t);
       if (!endpoint) return endpoint.error();
       o.otlp = std::move(*endpoint);
       return Status();
     },
     [](const NodeOptions& o) { return OrNone(o.otlp); }},
};

Status CheckTenant(std::string_view tenant) {
  bool good = !tenant.empty() && tenant.size() <= kMaxTenantBytes;
  for (char c : tenant) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_');
  }
  if (good) return Status();
  return Status(Code::kInvalid, Text("tenant: \"", Shown(tenant), "\" must be 1 to ", kMaxTenantBytes,
                                     " of a-z, 0-9, - and _, because it names a directory"));
}

}  // namespace

std::string HelpOf(const Setting& setting) {
  return setting.values == nullptr ? std::string(setting.help) : Text(setting.help, ": ", setting.values());
}

std::span<const Setting> NodeSettings() { return kSettings; }

const Setting* FindNodeSetting(std::string_view name) {
  for (const Setting& setting : kSettings) {
    if (setting.name == name) return &setting;
  }
  return nullptr;
}

Status SetNodeOption(NodeOptions& options, std::string_view shown, std::string_view name,
                     std::string_view text) {
  if (const Setting* setting = FindNodeSetting(name)) {
    // Lists say themselves what one of theirs looks like.
    if (text.empty() && setting->clear == nullptr)
      return Status(Code::kInvalid, Text(shown, ": is empty; give one, or leave it out"));
    return setting->set(options, shown, text);
  }
  std::vector<std::string_view> known;
  for (const Setting& setting : kSettings) known.push_back(setting.name);
  return Status(Code::kInvalid, UnknownName("key", shown, known));
}

Reloaded Reload(const NodeOptions& running, const NodeOptions& read) {
  Reloaded reloaded{.options = running};
  for (const Setting& setting : kSettings) {
    const std::string was = OrNone(setting.get(running)), is = OrNone(setting.get(read));
    const auto given = read.origins.find(setting.name);
    const std::string from = given == read.origins.end() ? "default" : given->second;
    if (setting.copy == nullptr) {
      if (was != is)
        reloaded.kept.push_back(
            Text(setting.name, ": is ", was, " until the next start, which takes ", is, " (", from, ")"));
      continue;
    }
    setting.copy(reloaded.options, read);
    reloaded.options.origins.erase(std::string(setting.name));
    if (given != read.origins.end()) reloaded.options.origins.insert(*given);
    if (was != is) reloaded.changed.push_back(Text(setting.name, ": ", was, " -> ", is, " (", from, ")"));
  }
  return reloaded;
}

Status ResolveNodeOptions(NodeOptions& options) {
  Result<memory::HostMemory> memory = memory::ReadHostMemory();
  if (!memory) return memory.error();
  const std::uint64_t host = memory->limit_bytes;
  if (options.memory_dir.empty()) {
    options.memory_dir = Text("/dev/shm/cistern-", static_cast<std::uint64_t>(geteuid()));
  }
  if (options.memory_bytes == 0) {
    const std::uint64_t file_system = memory::FileSystemBytes(options.memory_dir);
    options.memory_bytes = DefaultMemoryBytes(host, file_system);
    if (options.memory_bytes < kMinMemoryBytes && options.memory_bytes < host / 4) {
      return Status(
          Code::kInvalid,
          Text("memory_dir: the file system of ", options.memory_dir, " has ", RoughSizeText(file_system),
               ", and a node takes at least ", SizeText(kMinMemoryBytes),
               " and its index; make it larger (in Docker with --shm-size), or name another memory_dir"));
    }
  }
  if (options.memory_bytes > host) {
    return Status(Code::kInvalid,
                  Text("memory: ", SizeText(options.memory_bytes), " is above what this host gives (",
                       RoughSizeText(host), "); ask for at most that, or leave it out for a quarter"));
  }
  if (Status status = CheckMemoryBytes(options, options.memory_bytes); !status.ok()) return status;
  if (options.alignment != 512 && options.alignment != 4096) {
    return Status(Code::kInvalid, Text("alignment: ", static_cast<std::uint64_t>(options.alignment),
                                       " is not allowed; use 512B or 4096B"));
  }
  if (Status status = CheckPolicy(options.eviction); !status.ok())
    return Status(status.code(), Text("eviction: ", status.message()));
  if (options.movers < 1 || options.movers > 64)
    return Status(Code::kInvalid, Text("movers: ", options.movers, " is not allowed; use 1 to 64"));
  if (options.poll_us > 1'000'000)
    return Status(Code::kInvalid, Text("poll_us: ", options.poll_us, " is over the limit of 1s"));
  if (Status status = OneOf("loop", options.loop, kLoops, options.loop); !status.ok()) return status;
  if (Status status = CheckTenant(options.tenant); !status.ok()) return status;
  if (Status status = CheckCellOptions(options); !status.ok()) return status;
  return CheckFlashOptions(options);
}

Status CheckMemoryBytes(const NodeOptions& options, std::uint64_t memory_bytes) {
  if (memory_bytes < kMinMemoryBytes) {
    return Status(Code::kInvalid, Text("memory: ", SizeText(memory_bytes), " is below the least of ",
                                       SizeText(kMinMemoryBytes), "; ask for more"));
  }
  if (const std::uint64_t reserved = policy::QuotaTable(options.quotas).reserved_bytes();
      reserved > memory_bytes) {
    return Status(Code::kInvalid,
                  Text("quota: the reserves are ", SizeText(reserved), " together and memory is ",
                       SizeText(memory_bytes), "; reserve less, or give the node more memory"));
  }
  return Status();
}

std::uint64_t DefaultMemoryBytes(std::uint64_t host_bytes, std::uint64_t file_system_bytes) {
  const std::uint64_t fits = file_system_bytes == 0 ? host_bytes : file_system_bytes - file_system_bytes / 8;
  return std::min(host_bytes / 4, fits);
}

}  // namespace cistern::node
