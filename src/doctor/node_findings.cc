// SPDX-License-Identifier: Apache-2.0
#include "doctor/node_findings.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "arena/geometry.h"
#include "base/format.h"
#include "base/units.h"
#include "doctor/bottleneck.h"
#include "doctor/status_fields.h"

namespace cistern::doctor {
namespace {

namespace json = boost::json;

// A counter of the status that stays 0 as long as nothing is wrong.
struct Trouble {
  std::string_view name;
  std::string_view pointer;  // in the status
  Verdict verdict;           // when it is above 0
  std::string_view mend;
};

constexpr Trouble kTroubles[] = {
    {"damage", "/store/reported_bad", Verdict::kProblem,
     "bodies in memory failed their seal: look for memory errors (ras-mc-ctl --summary, dmesg), and at "
     "who else writes to the arena"},
    {"damage", "/store/cut_bad", Verdict::kProblem,
     "blocks failed their seal and were given up: look at the host's memory errors and at the devices "
     "of flash (smartctl)"},
    {"damage", "/flash/bad_records", Verdict::kProblem,
     "flash gave back what was not written there: see `cistern device list` for which device, "
     "and replace it"},
    {"devices", "/flash/errors", Verdict::kWarning,
     "transfers failed: see `cistern device list`, dmesg and smartctl"},
    {"room", "/store/writes_without_room", Verdict::kWarning,
     "puts found nothing that may go: raise `memory`, or shorten leases"},
    {"room", "/store/busy", Verdict::kWarning,
     "calls met a bound and were refused: docs/bounds.md says which there are and who may have how much"},
    {"writes", "/store/evicted_unwritten", Verdict::kWarning,
     "blocks left memory before they were on flash: add a device, "
     "or write less (flash_admit = \"second-hit\")"},
    {"writes", "/store/down_too_large", Verdict::kWarning,
     "blocks are larger than flash takes and stay in memory alone: its largest is a quarter of a region, of "
     "which the smallest device had 64 when flash was made; have smaller blocks, or begin anew on larger "
     "devices "
     "that are empty"},
    {"writes", "/store/down_over_budget", Verdict::kWarning,
     "the day's endurance budget was used up: raise `flash_budget`, "
     "or write less (flash_admit = \"second-hit\")"},
    {"writes", "/store/down_overflow", Verdict::kWarning,
     "flash did not keep up with puts: add a device, or write less (flash_admit = \"second-hit\")"},
    {"restart", "/store/recovery_refused", Verdict::kWarning,
     "records found at the last start were not believed: "
     "start with the same --flash, --journal-dir and --memory-dir as before"},
    {"names", "/cell/name_conflicts", Verdict::kWarning,
     "namespaces of one name have other lists of fields at other nodes, and are shared with none of these: "
     "`cistern cell` shows both lists"},
    {"sessions", "/door/ended_forged", Verdict::kWarning,
     "clients wrote what none writes into their rings: "
     "find a client of another build, or one that is hostile"},
    {"sessions", "/door/completions_lost", Verdict::kWarning,
     "a client does not collect its answers: look for one that hangs"},
    {"files", "/files/memory_removed", Verdict::kProblem,
     "another program removed what lies in memory_dir: the next start finds nothing of memory; where logind "
     "did, see the finding logout"},
    {"files", "/files/socket_removed", Verdict::kProblem,
     "another program removed the socket: no engine that starts comes in; restart the node"},
};

const json::array* DevicesOf(const json::object& status) {
  const json::value* devices = At(status, "/flash/devices");
  return devices != nullptr && devices->is_array() ? &devices->get_array() : nullptr;
}

Finding Memory(const json::object& status, const std::optional<node::NodeOptions>& asked) {
  const std::uint64_t bytes = NumberAt(status, "/memory/bytes");
  Finding finding{.name = "node_memory", .value = RoughSizeText(bytes)};
  if (!asked) return finding;
  const std::uint64_t wanted = arena::Geometry::Within(asked->memory_bytes, asked->alignment).slots_bytes();
  finding.limit = Text(RoughSizeText(wanted), " as configured");
  if (wanted == bytes) return finding;
  finding.verdict = Verdict::kWarning;
  if (NumberAt(status, "/memory/wanted_bytes") != wanted) {
    finding.mend = Text(
        "reload the node (systemctl reload cisternd), or `cistern admin memory SIZE`; where that is "
        "refused for want of room in the arena: end the node, `cistern forget --memory-dir ",
        asked->memory_dir, " --tenant ", asked->tenant, "` (what memory holds is lost), start it");
  } else if (bytes > wanted) {
    finding.mend = "it is on its way there: what is leased stays until its leases end";
  } else if (NumberAt(status, "/memory/short") == 0) {
    finding.mend = "it is on its way there: memory is reserved behind the node that serves";
  } else {
    finding.mend =
        "the host has no more now, and the node looks each minute: end what took it, or lower `memory`";
  }
  return finding;
}

// A node on a host with several memory nodes, all of which it may use.
void AddNodes(const json::object& status, const HostFacts& facts, Findings& findings) {
  const std::vector<memory::MemoryNode> may_use = memory::ArenaNodes(facts.numa);
  const std::size_t with = memory::NearCount(may_use), far = may_use.size() - with;
  const json::value* nodes = At(status, "/memory/nodes");
  if (with + far < 2 || nodes == nullptr || !nodes->is_array()) return;
  const std::size_t has = std::max<std::size_t>(nodes->get_array().size(), 1);
  Finding finding{.name = "node_numa", .value = Text(has), .limit = Text(with, " with processors")};
  if (far > 0) finding.limit += Text(", ", far, " of memory alone");
  if (has < with + far) {
    finding.verdict = Verdict::kWarning;
    finding.mend =
        "blocks do not lie where their engine runs, and slower memory is not for what is cold: let the node "
        "use all memory nodes and call mbind (a "
        "container's seccomp profile, or SYS_NICE), and give it 64 MiB of memory a node at least, more where "
        "they differ in size";
  }
  findings.push_back(std::move(finding));
}

Finding Loop(const json::object& status, const HostFacts& facts) {
  const std::string loop = TextAt(status, "/node/loop");
  Finding finding{.name = "node_loop", .value = loop, .limit = "io_uring where it works"};
  const json::array* devices = DevicesOf(status);
  const bool flash = devices != nullptr && !devices->empty();
  if (loop != "epoll" || !facts.uring_error.empty() || !flash) return finding;
  finding.verdict = Verdict::kWarning;
  finding.mend =
      "io_uring works for this shell and not for the node, or it was told loop = \"epoll\": "
      "see the seccomp profile of its container";
  return finding;
}

Finding Copy(const json::object& status, const HostFacts& facts) {
  const std::string copy = TextAt(status, "/node/copy");
  Finding finding{.name = "node_copy", .value = copy};
  if (facts.kernels.empty() || facts.kernels.front() == copy) return finding;
  finding.limit = facts.kernels.front();
  finding.verdict = Verdict::kWarning;
  finding.mend = "the processor runs a faster one: start the node without --copy";
  return finding;
}

Finding Cell(const json::object& status) {
  const std::uint64_t members = NumberAt(status, "/cell/members");
  const std::uint64_t reached = NumberAt(status, "/cell/reachable");
  Finding finding{.name = "node_cell",
                  .value = Text(members, " members, ", reached, " others reached"),
                  .limit = "it has joined, and reaches all others"};
  if (const std::string trouble = TextAt(status, "/cell/trouble"); !trouble.empty()) {
    finding.value = trouble;
    finding.mend = "as this says; until then it goes on alone, and refuses drops";
  } else if (NumberAt(status, "/cell/joined") == 0) {
    finding.value = "it has not joined yet";
    finding.mend = "its log says what it waits for";
  } else if (const std::uint64_t without = NumberAt(status, "/cell/without_rail");
             without > 0 && reached + 1 >= members) {
    finding.value = Text("no block can be read from ", without, " of ", reached, " others");
    finding.mend = "`cistern cell` says why: blocks are served at the port behind a member's cell_address";
  } else if (reached + 1 < members) {
    finding.mend =
        "drops of the whole cell end too late until each is reached, or is gone: `cistern cell` says which "
        "is not, and this node's log and that one's say why";
  }
  if (!finding.mend.empty()) finding.verdict = Verdict::kProblem;
  return finding;
}

Finding Certificate(std::int64_t ends_at, std::int64_t now) {
  constexpr std::int64_t kDayS = 86'400, kSoonDays = 14;
  const std::int64_t left_s = ends_at - now;
  Finding finding{.name = "node_certificate",
                  .value = left_s > 0 ? Text("ends in ", left_s / kDayS, " days") : "has ended",
                  .limit = Text(kSoonDays, " days")};
  if (left_s >= kSoonDays * kDayS) return finding;
  finding.verdict = left_s > 0 ? Verdict::kWarning : Verdict::kProblem;
  finding.mend =
      "others accept no connection of it past its end, and drops of the whole cell are too late then: put a "
      "new one in its place (docs/cell.md, Certificates) and restart the node, which reads it at its start";
  return finding;
}

void AddCell(const json::object& status, const HostFacts& facts, Findings& findings) {
  if (TextAt(status, "/cell/member").empty()) return;
  findings.push_back(Cell(status));
  if (const std::uint64_t ends_at = NumberAt(status, "/cell/certificate_ends"); ends_at > 0)
    findings.push_back(Certificate(static_cast<std::int64_t>(ends_at), facts.unix_seconds));
}

void AddRdma(const json::object& status, Findings& findings) {
  const std::string device = TextAt(status, "/cell/rdma"), none = TextAt(status, "/cell/no_rdma");
  if (device.empty() && none.empty()) return;
  Finding finding{
      .name = "node_rdma", .value = device.empty() ? none : device, .limit = "a device, as cell_rdma asks"};
  if (device.empty()) {
    finding.verdict = Verdict::kWarning;
    finding.mend =
        "blocks of other nodes come over TCP: docs/rdma.md has what a device takes, or set cell_rdma = "
        "\"off\"";
  }
  findings.push_back(std::move(finding));
}

void AddDevices(const json::object& status, Findings& findings) {
  const json::array* devices = DevicesOf(status);
  if (devices == nullptr) return;
  for (const json::value& value : *devices) {
    const json::object* device = value.if_object();
    const json::value* in_service = device == nullptr ? nullptr : device->if_contains("in_service");
    if (in_service == nullptr || !in_service->is_bool() || in_service->get_bool()) continue;
    const json::value* path = device->if_contains("path");
    const json::value* why = device->if_contains("why");
    const std::string name = path != nullptr && path->is_string() ? std::string(path->get_string()) : "";
    findings.push_back(
        {.name = "devices",
         .verdict = Verdict::kProblem,
         .value = Text(name, " is out of service: ",
                       why != nullptr && why->is_string() ? std::string(why->get_string()) : ""),
         .limit = "in service",
         .mend = Text("when it is whole again or another one: cistern device bring-back ", name)});
  }
}

void AddJournal(const json::object& status, Findings& findings) {
  if (At(status, "/journal/failed") == nullptr) return;  // of an earlier release
  Finding finding{.name = "journal",
                  .value = TextAt(status, "/node/journal"),
                  .limit = "it takes what is written, and has its spare"};
  if (NumberAt(status, "/journal/failed") > 0) {
    finding.verdict = Verdict::kProblem;
    finding.value = TextAt(status, "/journal/trouble");
    finding.mend = "as this says; until then drops and new namespaces are refused";
  } else if (NumberAt(status, "/journal/spare_bytes") == 0) {
    finding.verdict = Verdict::kWarning;
    finding.value += " has no room for its spare";
    finding.mend =
        "the next start may fail for want of room: make some there, and within a minute the node keeps it "
        "again";
  }
  findings.push_back(std::move(finding));
}

}  // namespace

std::optional<NodeBasics> BasicsOf(std::string_view status_json) {
  const auto status = ParseStatus(status_json);
  if (!status) return std::nullopt;
  NodeBasics basics;
  basics.pid = NumberAt(*status, "/node/pid");
  basics.tenant = TextAt(*status, "/node/tenant");
  basics.journal = TextAt(*status, "/node/journal");
  // What it is to have, where it grows.
  const std::uint64_t headers =
      std::max(NumberAt(*status, "/memory/bytes"), NumberAt(*status, "/memory/wanted_bytes")) /
      arena::kHeaderSpanBytes;
  basics.memory_bytes = arena::Geometry{4096, static_cast<std::uint32_t>(headers)}.file_bytes();
  const std::string directory = TextAt(*status, "/node/directory");
  basics.memory_dir = directory.substr(0, std::min(directory.rfind('/'), directory.size()));
  if (const json::array* devices = DevicesOf(*status)) {
    for (const json::value& device : *devices) {
      if (!device.is_object()) continue;
      FlashVolume volume{TextAt(device.get_object(), "/path"), NumberAt(device.get_object(), "/bytes")};
      if (!volume.path.empty()) basics.flash.push_back(std::move(volume));
    }
  }
  return basics;
}

Findings FindingsOfNode(std::string_view status_json, const HostFacts& facts,
                        const std::optional<node::NodeOptions>& asked) {
  const auto status = ParseStatus(status_json);
  if (!status) {
    return {{.name = "node",
             .verdict = Verdict::kProblem,
             .value = "answers what is no status",
             .limit = "a status of this version",
             .mend = "bring node and command line to the same release"}};
  }
  Findings findings = {
      {.name = "node",
       .value = Text("pid ", NumberAt(*status, "/node/pid"), ", ", NumberAt(*status, "/door/sessions"),
                     " sessions, ", NumberAt(*status, "/now/namespaces"), " namespaces, ",
                     NumberAt(*status, "/now/blocks"), " blocks")}};
  findings.push_back(Memory(*status, asked));
  AddNodes(*status, facts, findings);
  findings.push_back(Loop(*status, facts));
  findings.push_back(Copy(*status, facts));
  AddCell(*status, facts, findings);
  AddRdma(*status, findings);
  AddDevices(*status, findings);
  AddJournal(*status, findings);
  for (const Trouble& trouble : kTroubles) {
    const std::uint64_t count = NumberAt(*status, trouble.pointer);
    if (count == 0) continue;
    std::string field(trouble.pointer.substr(1));
    field[field.find('/')] = '.';
    findings.push_back({.name = std::string(trouble.name),
                        .verdict = trouble.verdict,
                        .value = Text(field, " = ", count),
                        .limit = "0",
                        .mend = std::string(trouble.mend)});
  }
  AddBottlenecks(*status, findings);
  return findings;
}

}  // namespace cistern::doctor
