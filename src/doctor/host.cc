// SPDX-License-Identifier: Apache-2.0
#include "doctor/host.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>
#include <system_error>

#include "arena/layout.h"
#include "base/fd.h"
#include "base/format.h"
#include "io/files.h"
#include "io/loop.h"
#include "node/flash_places.h"
#include "node/start_check.h"
#include "record/verified_copy.h"

namespace cistern::doctor {
namespace {

namespace fs = std::filesystem;

constexpr long kTmpfs = 0x01021994;
constexpr long kHugetlbfs = 0x958458f6;
// A host may have any number of processes and of directories in /dev/shm; the doctor looks at so many.
constexpr std::size_t kMostEntries = 16'384;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::uint64_t> NumberAt(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  return end.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::vector<fs::path> EntriesOf(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
    if (entries.size() == kMostEntries) break;
  }
  std::ranges::sort(entries);
  return entries;
}

// "always [within_size] never": the word in brackets.
std::string ChosenWord(const std::string& line) {
  const std::size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos ? line
                                                                 : line.substr(open + 1, close - open - 1);
}

bool IsNo(std::string_view value) {
  constexpr std::string_view kNo[] = {"no", "false", "off", "0", "n", "f"};
  return std::ranges::find(kNo, value) != std::end(kNo);
}

FileSystemFacts FileSystemOf(const std::string& directory) {
  FileSystemFacts facts{.path = directory};
  const std::string path = io::NearestPlace(directory);  // it may not be there yet
  struct statvfs size;
  if (::statvfs(path.c_str(), &size) != 0) return facts;
  facts.bytes = std::uint64_t{size.f_blocks} * size.f_frsize;
  facts.free_bytes = std::uint64_t{size.f_bavail} * size.f_frsize;
  struct statfs kind;
  if (::statfs(path.c_str(), &kind) == 0) {
    if (kind.f_type == kTmpfs) facts.kind = FileSystemFacts::Kind::kTmpfs;
    if (kind.f_type == kHugetlbfs) facts.kind = FileSystemFacts::Kind::kHugetlbfs;
  }
  return facts;
}

// Without writing anything: a file without a name in a directory, the device itself otherwise.
VolumeFacts VolumeOf(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return {path, ErrnoText(errno)};
  const bool directory = S_ISDIR(info.st_mode);
  const Fd fd(directory ? ::open(path.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600)
                        : ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return {path, ErrnoText(errno)};
  const off_t end = S_ISBLK(info.st_mode) ? ::lseek(fd.get(), 0, SEEK_END) : 0;
  return {.path = path, .device_bytes = end > 0 ? static_cast<std::uint64_t>(end) : 0};
}

void AskStart(const node::NodeOptions& options, HostFacts& facts) {
  facts.memory_dir.refused = node::CheckMemoryDirectory(options).message();
  const auto places = node::FindFlashPlaces(options, node::FindsFor::kCheck);
  for (std::size_t i = 0; places && i < facts.flash.size(); ++i) {
    facts.flash[i].refused = node::CheckDevice(*places, i).message();
    facts.flash[i].absent = !places->devices[i].absent.ok();
  }
  if (places) facts.lost_at_reboot = node::LostAtReboot(options, *places);
}

void AskOfRunning(const LookAt& at, HostFacts& facts) {
  node::NodeOptions options;
  for (const std::string& path : at.flash) options.flash.push_back({path, 0});
  facts.lost_at_reboot = node::LostAtReboot(options, {.journal_directory = at.journal});
}

std::optional<std::uint64_t> Memlock(const std::string& process) {
  constexpr std::string_view kName = "Max locked memory";
  std::ifstream file(process + "/limits");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kName)) return NumberAt(std::string_view(line).substr(kName.size()));
  }
  return std::nullopt;
}

std::optional<std::uint64_t> HugeBytesOf(const std::string& process) {
  constexpr std::string_view kName = "ShmemPmdMapped:";
  std::ifstream file(process + "/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kName)) continue;
    if (const auto kib = NumberAt(std::string_view(line).substr(kName.size()))) return *kib * 1024;
  }
  return std::nullopt;
}

// Arenas that were discarded, in "from-to flags offset device inode path (deleted)". One that is mapped
// several times counts once, by its inode.
std::uint64_t DiscardedArenas(const std::string& maps) {
  constexpr std::string_view kEnd = "/arena (deleted)";
  std::vector<std::string> seen;
  std::uint64_t bytes = 0;
  std::ifstream file(maps);
  for (std::string line; std::getline(file, line);) {
    if (!line.ends_with(kEnd) || line.find("cistern") == std::string::npos) continue;
    std::uint64_t from = 0, to = 0;
    const char* end = line.data() + line.size();
    const auto dash = std::from_chars(line.data(), end, from, 16);
    if (dash.ec != std::errc() || dash.ptr == end) continue;
    std::from_chars(dash.ptr + 1, end, to, 16);
    std::istringstream words(line);
    std::string inode;
    for (int word = 0; word < 5; ++word) words >> inode;
    if (to < from || std::ranges::find(seen, inode) != seen.end()) continue;
    seen.push_back(inode);
    bytes += to - from;
  }
  return bytes;
}

void LookAtProcesses(const LookAt& at, HostFacts& facts) {
  for (const fs::path& entry : EntriesOf(at.root + "/proc")) {
    const auto pid = NumberAt(entry.filename().string());
    struct stat info;
    if (!pid || ::stat(entry.c_str(), &info) != 0 || info.st_uid != facts.uid) continue;
    if (const std::uint64_t bytes = DiscardedArenas((entry / "maps").string()); bytes > 0)
      facts.mapped.push_back({*pid, bytes});
    // The kernel's own threads have no memory, and so no name of a program.
    if (*pid == static_cast<std::uint64_t>(::getpid()) || *pid == at.node_pid) continue;
    if (!FirstLine((entry / "cmdline").string()).empty()) ++facts.processes_of_uid;
  }
}

// Who else makes things in /dev/shm may make a FIFO, which waits for a writer, or a link to a device.
constexpr int kRead = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

bool IsArena(const fs::path& path) {
  const Fd fd(::open(path.c_str(), kRead));
  struct stat info;
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  std::uint64_t magic = 0;
  return ::pread(fd.get(), &magic, sizeof(magic), 0) == sizeof(magic) && magic == arena::kArenaMagic;
}

// A node that starts in this very moment finds the lock taken and looks again: it waits for milliseconds at
// least.
bool IsLocked(const fs::path& path) {
  const Fd fd(::open(path.c_str(), kRead));
  if (!fd.valid()) return false;
  if (::flock(fd.get(), LOCK_SH | LOCK_NB) == 0) {
    ::flock(fd.get(), LOCK_UN);
    return false;
  }
  return errno == EWOULDBLOCK;
}

void LookForArenas(const fs::path& memory_dir, std::vector<ArenaFacts>& arenas) {
  for (const fs::path& tenant : EntriesOf(memory_dir)) {
    struct stat info;
    const fs::path file = tenant / "arena";
    const bool known =
        std::ranges::any_of(arenas, [&](const ArenaFacts& other) { return other.directory == tenant; });
    if (known || ::stat(file.c_str(), &info) != 0 || !IsArena(file)) continue;
    arenas.push_back(
        {tenant.string(), static_cast<std::uint64_t>(info.st_blocks) * 512, IsLocked(tenant / "lock")});
  }
}

// logind runs and was not told otherwise. Of its files of one name only the first directory's counts, and the
// last name has the last word.
bool RemovesIpc(const std::string& root) {
  constexpr std::string_view kName = "RemoveIPC=";
  std::error_code ignored;
  if (!fs::exists(root + "/run/systemd/seats", ignored)) return false;
  std::map<std::string, fs::path> files;
  for (const char* in : {"/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd"}) {
    for (const fs::path& file : EntriesOf(root + in + "/logind.conf.d")) {
      if (file.extension() == ".conf") files.try_emplace(file.filename(), file);
    }
  }
  std::vector<fs::path> ordered = {root + "/etc/systemd/logind.conf"};
  for (const auto& [name, file] : files) ordered.push_back(file);
  bool removes = true;
  for (const fs::path& path : ordered) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      std::erase_if(line, [](char c) { return c == ' ' || c == '\t'; });
      if (line.starts_with(kName)) removes = !IsNo(std::string_view(line).substr(kName.size()));
    }
  }
  return removes;
}

// Who lingers is never logged out.
bool Lingers(const std::string& root, std::uint32_t uid) {
  std::error_code ignored;
  const passwd* user = ::getpwuid(uid);
  return user != nullptr && fs::exists(root + "/var/lib/systemd/linger/" + user->pw_name, ignored);
}

std::optional<bool> ClockIsSynchronised() {
  timex state{};
  const int said = ::adjtimex(&state);
  if (said < 0) return std::nullopt;
  return said != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
}

}  // namespace

std::uint32_t OwnerOf(const std::string& memory_dir, const std::string& tenant) {
  struct stat info;
  if (::stat((memory_dir + "/" + tenant).c_str(), &info) == 0) return info.st_uid;
  // The tenant's may be made in one of root's, as /dev/shm.
  if (::stat(memory_dir.c_str(), &info) == 0 && info.st_uid != 0) return info.st_uid;
  return ::geteuid();
}

Result<HostFacts> ReadHostFacts(const LookAt& at) {
  std::string process = at.root + "/proc/self";
  const std::string of_node = Text(at.root, "/proc/", at.node_pid);
  std::string process_name = "self";
  // The number may be that of another process here, where the node runs in a container.
  if (at.node_pid != 0 && FirstLine(of_node + "/comm") == "cisternd") {
    process = of_node;
    process_name = Text(at.node_pid);
  }
  Result<memory::HostMemory> memory = memory::ReadHostMemory(at.root, process_name);
  if (!memory) return Error(memory.error());
  HostFacts facts;
  facts.memory = std::move(*memory);
  utsname name;
  if (::uname(&name) == 0) facts.kernel = name.release;
  facts.memlock_bytes = Memlock(process);
  facts.node_huge_bytes = process_name == "self" ? std::nullopt : HugeBytesOf(process);
  facts.rdma = !EntriesOf(at.root + "/sys/class/infiniband").empty();
  facts.memory_dir = FileSystemOf(at.memory_dir);
  facts.shmem_huge = ChosenWord(FirstLine(at.root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  if (Status works = io::ProbeUring(); !works.ok()) facts.uring_error = works.message();
  for (const std::string& path : at.flash) facts.flash.push_back(VolumeOf(path));
  if (at.starts != nullptr) AskStart(*at.starts, facts);
  if (at.starts == nullptr && !at.journal.empty()) AskOfRunning(at, facts);
  facts.numa = memory::ReadMemoryNodes(at.root);
  for (const record::CopyKernels* kernels : record::AllKernels()) facts.kernels.emplace_back(kernels->name);
  facts.uid = ::geteuid();
  facts.removes_ipc = RemovesIpc(at.root) && !Lingers(at.root, facts.uid);
  LookAtProcesses(at, facts);
  LookForArenas(at.memory_dir, facts.arenas);
  for (const fs::path& entry : EntriesOf(at.root + "/dev/shm")) LookForArenas(entry, facts.arenas);
  facts.unix_seconds = ::time(nullptr);
  facts.clock_source =
      FirstLine(at.root + "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  facts.clock_synchronised = ClockIsSynchronised();
  return facts;
}

}  // namespace cistern::doctor
