// SPDX-License-Identifier: Apache-2.0
#include "doctor/host_findings.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "arena/geometry.h"
#include "base/format.h"
#include "base/units.h"
#include "node/flash_places.h"

namespace cistern::doctor {
namespace {

constexpr std::string_view kOldestKernel = "6.1";
// Pages of shared memory that a session or a put needs beside the arena: an eighth of it as staging and a
// sixteenth as sessions' rings, when all of both is taken.
constexpr std::uint64_t kBesideOf16 = 3;
// Up to this one a user is the system's (SYS_UID_MAX), whose files logind leaves alone.
constexpr std::uint32_t kLastSystemUser = 999;

// "6.1.0-28-amd64" against "6.1".
bool OlderThan(std::string_view release, std::string_view oldest) {
  const auto numbers = [](std::string_view text) {
    std::pair<int, int> both{0, 0};
    const auto end = std::from_chars(text.data(), text.data() + text.size(), both.first);
    if (end.ec == std::errc() && end.ptr != text.data() + text.size())
      std::from_chars(end.ptr + 1, text.data() + text.size(), both.second);
    return both;
  };
  return numbers(release) < numbers(oldest);
}

Finding Kernel(const HostFacts& facts) {
  Finding finding{.name = "kernel", .value = facts.kernel, .limit = Text("at least ", kOldestKernel)};
  if (!OlderThan(facts.kernel, kOldestKernel)) return finding;
  finding.verdict = Verdict::kWarning;
  finding.mend = "huge pages and parts of io_uring are missing here: boot a newer kernel";
  return finding;
}

// Bytes of files that the node keeps in its directory.
std::uint64_t FileBytes(const node::NodeOptions& options) {
  const arena::Geometry geometry = arena::Geometry::Within(options.memory_bytes, options.alignment);
  return geometry.file_bytes() + geometry.index_bytes();
}

// Bytes of the tables of what lies on flash, when it is full of small blocks. A device without a size is
// taken whole.
std::uint64_t TableBytes(const HostFacts& facts, const node::NodeOptions& options) {
  std::uint64_t flash = 0;
  for (const FlashVolume& volume : options.flash) {
    const auto found = std::ranges::find(facts.flash, volume.path, &VolumeFacts::path);
    const std::uint64_t whole = found == facts.flash.end() ? 0 : found->device_bytes;
    flash += volume.size_bytes > 0 ? volume.size_bytes : whole;
  }
  return node::kLowerEntryBytes * node::LowerBlocksOf(flash, options.alignment, facts.memory.limit_bytes);
}

const ArenaFacts* OwnArena(const HostFacts& facts, const node::NodeOptions& options) {
  const std::filesystem::path directory = std::filesystem::path(options.memory_dir) / options.tenant;
  for (const ArenaFacts& arena : facts.arenas) {
    const std::filesystem::path found = arena.directory;
    if (found.lexically_normal() == directory.lexically_normal()) return &arena;
  }
  return nullptr;
}

Finding Memory(const HostFacts& facts, const node::NodeOptions& options) {
  const std::uint64_t files = FileBytes(options);
  const memory::HostMemory& has = facts.memory;
  const std::uint64_t tables = TableBytes(facts, options);
  const std::uint64_t all = files + options.memory_bytes / 16 * kBesideOf16 + tables;
  Finding finding{.name = "memory",
                  .value = Text(RoughSizeText(files), " for arena and index, ", RoughSizeText(all),
                                " with all sessions and staging",
                                tables > 0 ? Text(", and the tables of flash") : std::string()),
                  .limit = Text(RoughSizeText(has.limit_bytes),
                                has.cgroup.empty() ? std::string(" of the host") : " by cgroup " + has.cgroup,
                                ", ", RoughSizeText(has.available_bytes), " available")};
  const bool there = OwnArena(facts, options) != nullptr;
  if (files > has.limit_bytes) {
    finding.verdict = Verdict::kProblem;
    finding.mend = Text("the node would be killed for memory: lower `memory`, or raise ",
                        has.cgroup.empty() ? std::string("the host's memory") : has.cgroup + "'s limit");
  } else if (!there && files > has.available_bytes) {
    finding.verdict = Verdict::kProblem;
    finding.mend = "a start is refused until so much is free: lower `memory`, or end what takes it";
  } else if (all > has.limit_bytes) {
    finding.verdict = Verdict::kWarning;
    finding.mend = Text("puts of many sessions at once may pass the limit: lower `memory` to ",
                        RoughSizeText((has.limit_bytes - tables) / 5 * 4), ", or raise the limit");
  }
  return finding;
}

Finding MemoryDirectory(const HostFacts& facts, const node::NodeOptions& options) {
  const FileSystemFacts& fs = facts.memory_dir;
  const std::uint64_t files = FileBytes(options);
  const ArenaFacts* own = OwnArena(facts, options);
  const std::uint64_t room = fs.free_bytes + (own == nullptr ? 0 : own->bytes);
  Finding finding{.name = "memory_dir",
                  .value = Text(fs.path,
                                fs.kind == FileSystemFacts::Kind::kTmpfs       ? " on a tmpfs of "
                                : fs.kind == FileSystemFacts::Kind::kHugetlbfs ? " on hugetlbfs of "
                                                                               : " on a disk of ",
                                RoughSizeText(fs.bytes), ", ", RoughSizeText(fs.free_bytes), " free"),
                  .limit = Text("a tmpfs with ", RoughSizeText(files))};
  if (fs.kind == FileSystemFacts::Kind::kHugetlbfs) {
    finding.verdict = Verdict::kProblem;
    finding.mend = "files of hugetlbfs cannot be written: name a tmpfs, mounted with huge=advise";
  } else if (fs.bytes != 0 && files > fs.bytes) {
    finding.verdict = Verdict::kProblem;
    finding.mend =
        "make it larger (mount -o remount,size=SIZE; docker run --shm-size; an emptyDir of medium Memory), "
        "or lower `memory`";
  } else if (fs.bytes != 0 && files > room) {
    finding.verdict = Verdict::kProblem;
    finding.mend = "free some of it: the findings named arenas say what nodes that are gone left there";
  } else if (!fs.refused.empty()) {
    finding.verdict = Verdict::kProblem;
    finding.value = fs.refused;
    finding.mend = "mend what this says, or name another directory: no node starts with it";
  } else if (fs.kind == FileSystemFacts::Kind::kOther) {
    finding.verdict = Verdict::kWarning;
    finding.mend = "the kernel writes its pages to the disk again and again: name a directory on a tmpfs";
  }
  return finding;
}

Finding Logout(const HostFacts& facts, const node::NodeOptions& options) {
  const std::filesystem::path directory = std::filesystem::path(options.memory_dir).lexically_normal();
  const bool removed =
      facts.removes_ipc && facts.uid > kLastSystemUser && directory.string().starts_with("/dev/shm/");
  Finding finding{.name = "logout",
                  .value = removed ? Text("logind removes ", directory.string(),
                                          " after the last logout of uid ", facts.uid)
                                   : std::string("memory's files stay"),
                  .limit = "memory's files outlive logins"};
  if (!removed) return finding;
  finding.verdict = Verdict::kWarning;
  finding.mend =
      "loginctl enable-linger, or RemoveIPC=no in /etc/systemd/logind.conf, or a memory_dir on a tmpfs of "
      "its own";
  return finding;
}

Finding HugePages(const HostFacts& facts) {
  const std::string& mode = facts.shmem_huge;
  Finding finding{.name = "huge_pages",
                  .value = mode.empty() ? std::string("this kernel has none") : Text("shmem_enabled=", mode),
                  .limit = "any mode but deny"};
  if (facts.node_huge_bytes)
    finding.value += Text(", the node maps ", RoughSizeText(*facts.node_huge_bytes), " in huge pages");
  if (!mode.empty() && mode != "deny") return finding;
  finding.verdict = Verdict::kWarning;
  finding.mend = mode.empty() ? "copies into memory pay for every page of 4 KiB: boot a kernel that has them"
                              : "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
  return finding;
}

Finding Memlock(const HostFacts& facts, const node::NodeOptions& options) {
  const auto& limit = facts.memlock_bytes;
  Finding finding{
      .name = "memlock",
      .value = limit ? RoughSizeText(*limit) : "unlimited",
      .limit = facts.rdma ? "the memory, which RDMA devices lock" : "none: no device here locks memory"};
  if (!facts.rdma || !limit || *limit >= options.memory_bytes) return finding;
  finding.verdict = Verdict::kWarning;
  finding.mend = "RDMA cannot register the arena: LimitMEMLOCK=infinity in the unit, --ulimit memlock=-1";
  return finding;
}

Finding Uring(const HostFacts& facts, const node::NodeOptions& options) {
  Finding finding{.name = "io_uring",
                  .value = facts.uring_error.empty() ? "works" : facts.uring_error,
                  .limit = Text("loop = ", options.loop)};
  if (facts.uring_error.empty()) return finding;
  const bool asked = options.loop == "io_uring";
  const bool flash = !options.flash.empty();
  if (options.loop == "epoll" || (!asked && !flash)) return finding;
  finding.verdict = asked ? Verdict::kProblem : Verdict::kWarning;
  finding.mend =
      Text(asked ? "the node does not start with loop = io_uring" : "flash is read by threads",
           ": allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp "
           "profile, and see sysctl kernel.io_uring_disabled");
  return finding;
}

void AddFlash(const HostFacts& facts, Findings& findings) {
  for (const VolumeFacts& volume : facts.flash) {
    Finding& finding = findings.emplace_back();
    finding.name = "flash";
    finding.limit = "opens with O_DIRECT";
    finding.value = volume.path + (volume.direct_error.empty() ? "" : ": " + volume.direct_error);
    if (volume.direct_error.empty() && volume.refused.empty()) continue;
    finding.verdict = Verdict::kProblem;
    if (volume.absent) {
      finding.value = volume.refused;
      finding.limit = "it is there";
      finding.mend = Text("mount or replace the drive; `cistern device bring-back ", volume.path,
                          "` takes it in while the node runs");
      continue;
    }
    if (volume.direct_error.empty()) {
      finding.value = volume.refused;
      finding.limit = "what a start takes";
      finding.mend = "mend what this says, or name another place: no node starts with it";
      continue;
    }
    finding.mend =
        "name a directory of ext4 or xfs that this user may write, or a block device; a tmpfs and an overlay "
        "have no direct I/O";
  }
}

void AddReboot(const HostFacts& facts, Findings& findings) {
  for (const node::Lost& lost : facts.lost_at_reboot) {
    findings.push_back({.name = "reboot",
                        .verdict = Verdict::kWarning,
                        .value = lost.what,
                        .limit = "flash outlives it",
                        .mend = std::string(lost.way_out)});
  }
}

Finding Numa(const HostFacts& facts) {
  const std::size_t without = facts.numa.size() - memory::NearCount(facts.numa);
  const std::vector<memory::MemoryNode> used = memory::ArenaNodes(facts.numa);
  const std::size_t far = used.size() - memory::NearCount(used);
  const std::size_t nodes = std::max<std::size_t>(facts.numa.size(), 1);
  Finding finding{.name = "numa",
                  .value = Text(nodes, nodes == 1 ? " memory node" : " memory nodes"),
                  .limit = "any number: blocks lie where their engine runs"};
  if (without > 0) finding.value += Text(", ", without, " without processors");
  if (far > 0) {
    finding.value += Text(", of which ", far, far == 1 ? " is" : " are", " slower memory for what is cold");
  } else if (without > 0) {
    finding.value += ", left to the system: as fast as the others, or a device's";
  }
  return finding;
}

Finding Cpu(const HostFacts& facts) {
  Finding finding{
      .name = "cpu", .value = Joined(facts.kernels, ", "), .limit = "a kernel that checks at memory speed"};
  if (facts.kernels.size() > 1) return finding;
  finding.verdict = Verdict::kWarning;
  finding.mend =
      "checking costs more than copying here: run on a processor with AVX2 and PCLMULQDQ or AArch64's CRC, "
      "and in a virtual machine pass them on (cpu model host)";
  return finding;
}

Finding Clients(const HostFacts& facts) {
  Finding finding{.name = "clients",
                  .value = Text("uid ", facts.uid, ", ", facts.processes_of_uid, " other processes of it"),
                  .limit = "processes of this uid are trusted: they can write to the arena's files"};
  if (facts.uid != 0) return finding;
  finding.verdict = Verdict::kWarning;
  finding.mend = "let the node run as a user of its own (User= in its unit)";
  return finding;
}

void AddArenas(const HostFacts& facts, const node::NodeOptions& options, Findings& findings) {
  const std::size_t before = findings.size();
  const ArenaFacts* own = OwnArena(facts, options);
  for (const ArenaFacts& arena : facts.arenas) {
    if (arena.in_use || &arena == own) continue;
    findings.push_back(
        {.name = "arenas",
         .verdict = Verdict::kWarning,
         .value = Text(arena.directory, " keeps ", RoughSizeText(arena.bytes), ", and no node"),
         .limit = "0 without a node",
         .mend = Text("start its node again, or free it: cistern forget --memory-dir ",
                      arena.directory.substr(0, arena.directory.rfind('/')), " --tenant ",
                      arena.directory.substr(arena.directory.rfind('/') + 1))});
  }
  for (const MappedArena& mapped : facts.mapped) {
    findings.push_back({.name = "arenas",
                        .verdict = Verdict::kWarning,
                        .value = Text("process ", mapped.pid, " still maps ", RoughSizeText(mapped.bytes),
                                      " of a discarded arena"),
                        .limit = "0",
                        .mend = Text("an engine lets go of it within seconds of its node's end; if process ",
                                     mapped.pid, " is another program, close its store or end it")});
  }
  if (findings.size() > before) return;
  findings.push_back({.name = "arenas",
                      .value = own == nullptr ? "none left over"
                                              : Text(own->directory, " keeps ", RoughSizeText(own->bytes),
                                                     own->in_use ? ", in use" : " for the next start"),
                      .limit = "none without a node"});
}

Finding Clock(const HostFacts& facts) {
  constexpr std::string_view kSlow[] = {"hpet", "acpi_pm", "jiffies", "refined-jiffies"};
  Finding finding{.name = "clock",
                  .value = facts.clock_source.empty() ? std::string("source not known") : facts.clock_source,
                  .limit = "a source that is read without a system call, synchronised"};
  const bool slow = std::ranges::find(kSlow, facts.clock_source) != std::end(kSlow);
  if (facts.clock_synchronised)
    finding.value += *facts.clock_synchronised ? ", synchronised" : ", not synchronised";
  if (slow) {
    finding.verdict = Verdict::kWarning;
    finding.mend =
        "each look at the clock costs a microsecond: "
        "boot with clocksource=tsc where the processor's is stable";
  } else if (facts.clock_synchronised == false) {
    finding.verdict = Verdict::kWarning;
    finding.mend =
        "blocks with a TTL may go early or late by as much as the clock is wrong: run chrony or "
        "systemd-timesyncd";
  }
  return finding;
}

}  // namespace

bool HasNode(const HostFacts& facts, const node::NodeOptions& options) {
  const ArenaFacts* own = OwnArena(facts, options);
  return own != nullptr && own->in_use;
}

Findings FindingsOfHost(const HostFacts& facts, const node::NodeOptions& options) {
  Findings findings = {Kernel(facts),          Memory(facts, options), MemoryDirectory(facts, options),
                       Logout(facts, options), HugePages(facts),       Memlock(facts, options),
                       Uring(facts, options)};
  AddFlash(facts, findings);
  AddReboot(facts, findings);
  findings.push_back(Numa(facts));
  findings.push_back(Cpu(facts));
  findings.push_back(Clients(facts));
  AddArenas(facts, options, findings);
  findings.push_back(Clock(facts));
  return findings;
}

}  // namespace cistern::doctor
