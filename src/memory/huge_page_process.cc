// SPDX-License-Identifier: Apache-2.0
#include "memory/huge_page_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <span>
#include <utility>

#include "base/format.h"
#include "base/huge_pages.h"
#include "base/mapping.h"

namespace cistern::memory {
namespace {

constexpr const char* kName = "cistern-pages";
// As the process has them; below are those of every process, of which it keeps the last, for complaints.
constexpr int kArena = 3, kOrders = 4, kLife = 5;
constexpr int kEndMs = 1000;

struct Order {
  std::uint64_t offset, bytes;  // of whole huge pages
};

Status SystemError(const char* what, int error) {
  return Status(Code::kIoError, Text(what, ": ", ErrnoText(error)));
}

// A descriptor above those of the process, so that giving it its own overwrites none that is still needed.
Fd MoveUp(int fd) { return Fd(::fcntl(fd, F_DUPFD_CLOEXEC, kLife + 1)); }

// What a new process starts with.
class Spawn {
 public:
  Spawn() {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
  }
  ~Spawn() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;

  void Give(int fd, int as) { ::posix_spawn_file_actions_adddup2(&actions_, fd, as); }

  // Returns an errno; 0: `pid` runs it.
  int Run(const char* path, std::span<char* const> arguments, pid_t& pid) {
    // Nothing of the node's stays open in it: a lock that it shares would outlive the node.
    for (int fd : {STDIN_FILENO, STDOUT_FILENO}) ::posix_spawn_file_actions_addclose(&actions_, fd);
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, kLife + 1);
    sigset_t none;
    sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK);
    return ::posix_spawn(&pid, path, &actions_, &attributes_, arguments.data(), environ);
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

std::string HowText(int how) {
  if (WIFSIGNALED(how)) return Text("was ended by signal ", WTERMSIG(how));
  return Text("ended with status ", WEXITSTATUS(how));
}

}  // namespace

int RunHugePageProcess() {
  ::prctl(PR_SET_NAME, kName);
  // What a terminal or a supervisor sends to all processes of the node: the node decides when this one ends.
  for (int signal_number : {SIGTERM, SIGINT, SIGHUP}) ::signal(signal_number, SIG_IGN);
  // Behind whoever wakes up, and no further: while a huge page is filled, the node waits that touches it.
  const sched_param usual{};
  ::sched_setscheduler(0, SCHED_BATCH, &usual);
  Order order;
  ssize_t got;
  while ((got = ::recv(kOrders, &order, sizeof(order), 0)) == sizeof(order)) {
    // To read: no byte of the arena can be changed from here.
    if (Result<Mapping> map = Mapping::Map(kArena, "arena", order.offset, order.bytes, Access::kRead))
      MoveIntoHugePages(map->data(), map->size());
    if (::send(kOrders, &order, sizeof(order), MSG_NOSIGNAL) != sizeof(order)) break;
  }
  // A node that is killed before it has taken an answer resets the socket.
  if (got >= 0 || errno == ECONNRESET) return 0;
  std::fprintf(stderr, "cisternd: %s: is started by a node: %s\n", kHugePageWord.data(),
               ErrnoText(errno).c_str());
  return 2;
}

Result<std::unique_ptr<HugePageProcess>> HugePageProcess::Start(const std::string& program, int arena_fd,
                                                                int move_ms) {
  int ends[2], life[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return Error(SystemError("socketpair", errno));
  Fd orders(ends[0]);
  const Fd below(ends[1]);
  if (::pipe2(life, O_CLOEXEC) != 0) return Error(SystemError("pipe", errno));
  Fd alive(life[0]);
  const Fd lives(life[1]);
  const Fd arena_up = MoveUp(arena_fd), orders_up = MoveUp(below.get()), life_up = MoveUp(lives.get());
  if (!arena_up.valid() || !orders_up.valid() || !life_up.valid())
    return Error(SystemError("descriptors", errno));
  Spawn spawn;
  spawn.Give(arena_up.get(), kArena);
  spawn.Give(orders_up.get(), kOrders);
  spawn.Give(life_up.get(), kLife);
  std::string name = kName, word(kHugePageWord);
  const std::array<char*, 3> arguments = {name.data(), word.data(), nullptr};
  pid_t pid = -1;
  if (int error = spawn.Run(program.c_str(), arguments, pid); error != 0)
    return Error(SystemError(program.c_str(), error));
  return std::unique_ptr<HugePageProcess>(
      new HugePageProcess(pid, std::move(orders), std::move(alive), move_ms));
}

HugePageProcess::HugePageProcess(pid_t pid, Fd orders, Fd life, int move_ms)
    : pid_(pid), orders_(std::move(orders)), life_(std::move(life)), move_ms_(move_ms) {}

HugePageProcess::~HugePageProcess() {
  End();
  // One that waits for the processors' turns ends after them, by itself; the node does not wait for it.
  Reap(kEndMs);
}

bool HugePageProcess::Move(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t first = (offset + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const std::uint64_t end = (offset + bytes) / kHugePageBytes * kHugePageBytes;
  if (first >= end) return true;
  const Order order{first, end - first};
  const std::lock_guard turn(turn_);
  if (answer_owed_ && !TakeAnswer()) return false;
  answer_owed_ = true;
  if (::send(orders_.get(), &order, sizeof(order), MSG_NOSIGNAL) != sizeof(order)) return false;
  answer_owed_ = !TakeAnswer();
  return !answer_owed_;
}

bool HugePageProcess::TakeAnswer() const {
  pollfd answered{.fd = orders_.get(), .events = POLLIN, .revents = 0};
  Order answer;
  return ::poll(&answered, 1, move_ms_) == 1 &&
         ::recv(orders_.get(), &answer, sizeof(answer), MSG_DONTWAIT) == sizeof(answer);
}

void HugePageProcess::End() {
  const std::lock_guard lock(state_);
  ending_ = true;
  ::shutdown(orders_.get(), SHUT_RDWR);
}

bool HugePageProcess::Reap(int timeout_ms) {
  pollfd life{.fd = life_.get(), .events = POLLIN, .revents = 0};
  while (::poll(&life, 1, timeout_ms) < 0 && errno == EINTR) continue;
  const std::lock_guard lock(state_);
  if (!reaped_ && life.revents != 0) reaped_ = ::waitpid(pid_, &how_, 0) == pid_;
  return reaped_;
}

Status HugePageProcess::Await() {
  // Hangs up when the process has ended, and when it is to.
  pollfd orders{.fd = orders_.get(), .events = POLLRDHUP, .revents = 0};
  while (::poll(&orders, 1, -1) < 0 && errno == EINTR) continue;
  {
    const std::lock_guard lock(state_);
    if (ending_) return Status();
  }
  Reap(-1);
  return Status(Code::kGone, Text("process ", pid_, " (", kName, ") ", HowText(how_)));
}

}  // namespace cistern::memory
