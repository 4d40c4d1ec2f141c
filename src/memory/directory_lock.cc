// SPDX-License-Identifier: Apache-2.0
#include "memory/directory_lock.h"

#include <errno.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include "base/format.h"

namespace cistern::memory {
namespace {

namespace fs = std::filesystem;

// A process that is on its way out looks alive for a moment, and a supervisor may start the next one in it.
constexpr std::int64_t kDyingUs = 100'000;
constexpr long kLookNs = 2'000'000;

// Start time tells a process from a later one with its number.
struct Process {
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;
};

struct ProcessState {
  bool ending = false;  // a zombie, or in exit already
  std::uint64_t start_ticks = 0;
};

// From /proc/PID/stat; none where there is no such process to be seen.
std::optional<ProcessState> Look(std::int64_t pid) {
  std::ifstream file(Text("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The name in parentheses may contain anything.
  std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  ProcessState state;
  constexpr std::uint64_t kExiting = 0x4, kSignaled = 0x400;  // PF_EXITING, PF_SIGNALED
  for (int number = 3; fields >> field; ++number) {
    std::uint64_t value = 0;
    std::from_chars(field.data(), field.data() + field.size(), value);
    if (number == 3) state.ending = field == "Z" || field == "X";
    if (number == 9 && (value & (kExiting | kSignaled)) != 0) state.ending = true;
    if (number == 22) state.start_ticks = value;
  }
  return state;
}

std::optional<Process> ReadHolder(int fd) {
  char text[64];
  ssize_t got = ::pread(fd, text, sizeof(text), 0);
  if (got <= 0) return std::nullopt;
  const char* end = text + got;
  Process holder;
  auto pid = std::from_chars(text, end, holder.pid);
  if (pid.ec != std::errc() || pid.ptr == end) return std::nullopt;
  if (std::from_chars(pid.ptr + 1, end, holder.start_ticks).ec != std::errc()) return std::nullopt;
  return holder;
}

// Over what is there, never shorter: on a full disk a file that was emptied finds no room for its text.
Status WriteHolder(int fd, const std::string& path) {
  constexpr std::size_t kTextBytes = 48;
  const std::optional<ProcessState> self = Look(::getpid());
  std::string text = Text(::getpid(), " ", self ? self->start_ticks : 0);
  text.resize(kTextBytes - 1, ' ');
  text += '\n';
  if (::pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size())) return Status();
  return Status(Code::kIoError, Text("write ", path, ": ", ErrnoText(errno)));
}

bool Lives(const std::optional<Process>& holder) {
  if (!holder) return false;
  const std::optional<ProcessState> state = Look(holder->pid);
  return state && !state->ending && state->start_ticks == holder->start_ticks;
}

// A process that the dead holder had forked, and that has its open files: the flock is theirs too. None: no
// such process is seen.
std::optional<std::string> HeirOf(int fd) {
  struct stat lock;
  if (::fstat(fd, &lock) != 0) return std::nullopt;
  const auto holds = [&](const fs::path& process, const fs::path& number) {
    struct stat open;
    if (::stat((process / "fd" / number).c_str(), &open) != 0) return false;
    if (open.st_dev != lock.st_dev || open.st_ino != lock.st_ino) return false;
    std::ifstream info(process / "fdinfo" / number);  // who waits for it as well has no line of a lock there
    for (std::string line; std::getline(info, line);) {
      if (line.starts_with("lock:")) return true;
    }
    return false;
  };
  std::error_code ended;
  for (fs::directory_iterator process("/proc", ended), end; !ended && process != end;
       process.increment(ended)) {
    const std::string pid = process->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code gone;  // or another user's
    for (fs::directory_iterator open(process->path() / "fd", gone); !gone && open != end;
         open.increment(gone)) {
      if (holds(process->path(), open->path().filename())) return pid;
    }
  }
  return std::nullopt;
}

Status NotLetGo(const std::string& directory, std::int64_t wait_us, int fd) {
  const std::optional<std::string> heir = HeirOf(fd);
  return Status(Code::kBusy,
                Text("directory ", directory, ": was not let go within ", wait_us / 1000,
                     " ms, though the node that held it is gone (",
                     heir ? Text("process ", *heir, ", which that one forked, has its files: end it")
                          : std::string("its last I/O has not ended, or it runs in another container"),
                     "); start again when ", heir ? "that" : "it", " has ended"));
}

}  // namespace

Result<DirectoryLock> LockDirectory(const std::string& directory, std::int64_t wait_us, const Clock& clock) {
  const std::string path = directory + "/lock";
  Result<Fd> fd = io::OpenFile(path, io::OpenMode::kCreate);
  if (!fd) return Error(std::move(fd.error()));
  if (Status own = io::CheckOwnFile(fd->get(), path); !own.ok()) return Error(std::move(own));
  const Instant start = clock.Now();
  Instant seen_ending = start;
  for (;;) {
    Status locked = io::TryLock(fd->get(), path);
    if (locked.ok()) break;
    if (locked.code() != Code::kBusy) return Error(std::move(locked));
    const std::optional<Process> holder = ReadHolder(fd->get());
    const Instant now = clock.Now();
    if (!Lives(holder)) {
      seen_ending = now;
    } else if (now.UsSince(seen_ending) >= kDyingUs) {
      return Error(Code::kBusy, Text("directory ", directory, ": is held by node pid ", holder->pid,
                                     "; end it, or give this one another directory"));
    }
    if (now.UsSince(start) >= wait_us && now.UsSince(start) >= kDyingUs) {
      return Error(NotLetGo(directory, wait_us, fd->get()));
    }
    timespec look{0, kLookNs};
    ::nanosleep(&look, nullptr);
  }
  if (Status written = WriteHolder(fd->get(), path); !written.ok()) return Error(std::move(written));
  return DirectoryLock(std::move(*fd));
}

}  // namespace cistern::memory
