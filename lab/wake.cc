// SPDX-License-Identifier: Apache-2.0
// Tests: a core asleep in its loop (epoll_wait, io_uring_enter) for 10 ms answers a client that wakes it
// through an eventfd within 1.5 futex round trips of the same run; and what a hand-off to a core that spins
// costs.
#include <liburing.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <span>

#include "lab.h"

namespace lab {
namespace {

constexpr std::string_view kHelp =
    "wake: one request from a client process to a core process that sleeps, by kind of sleep; round trips in "
    "us.\n"
    "Kinds take turns; --idle-us passes before each request, except in the kinds called hot.\n"
    "example: wake --rounds 500 --client-idle spin";

enum class CoreWaits { kFutex, kEpoll, kUring, kUringFutex, kSpin };
enum class ClientWaits { kSpin, kSleep, kSleepOnSocket };

// A line each: what the client writes, what the core writes, what makes the core spin.
struct Channel {
  alignas(64) std::atomic<std::uint32_t> request;
  alignas(64) std::atomic<std::uint32_t> completion;
  std::atomic<std::uint64_t> woken_at;
  alignas(64) std::atomic<std::uint32_t> spin;
};

struct Kind {
  const char* name;
  CoreWaits core;
  ClientWaits client;
  bool idle;
  Channel* channel = nullptr;
  int to_core = -1;
  int to_client = -1;
  int from_core = -1;  // the client's end, where it is another
  std::vector<double> trip_us = {};
  std::vector<double> call_us = {};   // the client's waking system call
  std::vector<double> awake_us = {};  // from before that call until the core runs
};

long Futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

void FutexAwaitChange(std::atomic<std::uint32_t>& word, std::uint32_t from) {
  while (word.load(std::memory_order_acquire) == from) Futex(word, FUTEX_WAIT, from);
}

void Signal(int event) {
  const std::uint64_t one = 1;
  if (write(event, &one, sizeof(one)) != sizeof(one)) Die("write to an eventfd");
}

void Drain(int event) {
  std::uint64_t count = 0;
  if (read(event, &count, sizeof(count)) != sizeof(count)) Die("read of an eventfd");
}

// What a core does once it runs: take the request, answer, wake the client if that one sleeps.
void Answer(const Kind& kind, std::uint32_t& seen) {
  Channel& channel = *kind.channel;
  const std::uint32_t request = channel.request.load(std::memory_order_acquire);
  if (request == seen) return;
  channel.woken_at.store(Ticks(), std::memory_order_relaxed);
  seen = request;
  channel.completion.store(request, std::memory_order_release);
  if (kind.client == ClientWaits::kSpin) return;
  if (kind.client == ClientWaits::kSleepOnSocket) {
    if (send(kind.to_client, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) Die("send to a socket");
    return;
  }
  if (kind.core == CoreWaits::kFutex)
    Futex(channel.completion, FUTEX_WAKE, 1);
  else
    Signal(kind.to_client);
}

[[noreturn]] void FutexCore(const Kind& kind) {
  for (std::uint32_t seen = 0;;) {
    FutexAwaitChange(kind.channel->request, seen);
    Answer(kind, seen);
  }
}

[[noreturn]] void EpollCore(const Kind& kind) {
  const int loop = epoll_create1(EPOLL_CLOEXEC);
  // Edge-triggered, so that nothing is read back: a read after the answer would swallow the next request's
  // signal.
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.fd = kind.to_core}};
  if (loop < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, kind.to_core, &event) != 0) Die("epoll");
  for (std::uint32_t seen = 0;;) {
    epoll_event ready[8];
    if (epoll_wait(loop, ready, 8, -1) < 0) Die("epoll_wait");
    Answer(kind, seen);
  }
}

void PrepareWait(io_uring& ring, const Kind& kind, std::uint64_t& count, std::uint32_t seen) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring);
  if (kind.core == CoreWaits::kUring) {
    io_uring_prep_read(sqe, kind.to_core, &count, sizeof(count), 0);
    return;
  }
  // Opcode 51 is IORING_OP_FUTEX_WAIT (Linux 6.7), which liburing 2.3 does not know.
  std::memset(sqe, 0, sizeof(*sqe));
  sqe->opcode = 51;
  sqe->fd = 2;  // FUTEX2_SIZE_U32, shared
  sqe->addr = reinterpret_cast<std::uint64_t>(&kind.channel->request);
  sqe->off = seen;
  sqe->addr3 = 0xffffffff;
}

[[noreturn]] void UringCore(const Kind& kind) {
  io_uring ring;
  io_uring_params params{};
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  if (io_uring_queue_init_params(64, &ring, &params) != 0) Die("io_uring_setup");
  std::uint64_t count = 0;
  for (std::uint32_t seen = 0;;) {
    PrepareWait(ring, kind, count, seen);
    if (io_uring_submit_and_wait(&ring, 1) < 0) Die("io_uring_enter");
    Answer(kind, seen);
    io_uring_cqe* cqe;
    if (io_uring_peek_cqe(&ring, &cqe) != 0 || (cqe->res < 0 && cqe->res != -EAGAIN)) Die("io_uring wait");
    io_uring_cqe_seen(&ring, cqe);
  }
}

// Spins only while it is told to: it must not take the processor from the other kinds.
[[noreturn]] void SpinningCore(const Kind& kind) {
  for (std::uint32_t seen = 0;;) {
    FutexAwaitChange(kind.channel->spin, 0);
    while (kind.channel->spin.load(std::memory_order_relaxed) != 0) {
      Answer(kind, seen);
      _mm_pause();
    }
  }
}

pid_t StartCore(const Kind& kind, int cpu) {
  const pid_t child = fork();
  if (child < 0) Die("fork");
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (cpu >= 0) PinTo(cpu);
  switch (kind.core) {
    case CoreWaits::kFutex: FutexCore(kind);
    case CoreWaits::kEpoll: EpollCore(kind);
    case CoreWaits::kUring:
    case CoreWaits::kUringFutex: UringCore(kind);
    case CoreWaits::kSpin: SpinningCore(kind);
  }
  _exit(1);
}

class Client {
 public:
  Client(std::uint64_t idle_us, bool spin_idle, double ticks_per_us)
      : idle_us_(idle_us), spin_idle_(spin_idle), ticks_per_us_(ticks_per_us) {}

  void RoundTrip(Kind& kind) {
    Channel& channel = *kind.channel;
    if (kind.core == CoreWaits::kSpin) {
      channel.spin.store(1, std::memory_order_release);
      Futex(channel.spin, FUTEX_WAKE, 1);
    }
    if (kind.idle)
      Idle(idle_us_);
    else if (kind.core == CoreWaits::kSpin)
      Idle(1000);
    const std::uint32_t number = channel.request.load(std::memory_order_relaxed) + 1;
    const std::uint64_t begin = Ticks();
    channel.request.store(number, std::memory_order_release);
    Wake(kind);
    const std::uint64_t called = Ticks();
    Await(kind, number);
    const std::uint64_t end = Ticks();
    channel.spin.store(0, std::memory_order_relaxed);
    kind.trip_us.push_back(Us(end - begin));
    kind.call_us.push_back(Us(called - begin));
    kind.awake_us.push_back(Us(channel.woken_at.load(std::memory_order_relaxed) - begin));
  }

 private:
  double Us(std::uint64_t ticks) const {
    return static_cast<double>(static_cast<std::int64_t>(ticks)) / ticks_per_us_;
  }

  void Idle(std::uint64_t us) const {
    if (!spin_idle_) {
      usleep(static_cast<useconds_t>(us));
      return;
    }
    for (const std::uint64_t end = NowNs() + us * 1000; NowNs() < end;) _mm_pause();
  }

  static void Wake(const Kind& kind) {
    switch (kind.core) {
      case CoreWaits::kFutex:
      case CoreWaits::kUringFutex: Futex(kind.channel->request, FUTEX_WAKE, 1); break;
      case CoreWaits::kEpoll:
      case CoreWaits::kUring: Signal(kind.to_core); break;
      case CoreWaits::kSpin: break;
    }
  }

  static void Await(const Kind& kind, std::uint32_t number) {
    std::atomic<std::uint32_t>& completion = kind.channel->completion;
    if (kind.client == ClientWaits::kSpin) {
      while (completion.load(std::memory_order_acquire) != number) _mm_pause();
    } else if (kind.core == CoreWaits::kFutex) {
      FutexAwaitChange(completion, number - 1);
    } else if (kind.client == ClientWaits::kSleepOnSocket) {
      char byte;
      if (recv(kind.from_core, &byte, 1, 0) != 1) Die("recv from a socket");
    } else {
      Drain(kind.to_client);
    }
  }

  const std::uint64_t idle_us_;
  const bool spin_idle_;
  const double ticks_per_us_;
};

void Print(std::span<Kind> kinds) {
  const double hot = Percentile(kinds[0].trip_us, 0.5);
  const double idle = Percentile(kinds[1].trip_us, 0.5);
  std::printf("%-34s %8s %8s %9s %9s %8s %8s\n", "", "p50_us", "p99_us", "/futexhot", "/futex", "call_us",
              "awake_us");
  for (Kind& kind : kinds) {
    const double p50 = Percentile(kind.trip_us, 0.5);
    std::printf("%-34s %8.2f %8.2f %9.2f %9.2f %8.2f %8.2f\n", kind.name, p50, Percentile(kind.trip_us, 0.99),
                p50 / hot, p50 / idle, Percentile(kind.call_us, 0.5), Percentile(kind.awake_us, 0.5));
  }
}

int Main(int argc, char** argv) {
  Flags flags(kHelp, {{"rounds", "300"}, {"idle-us", "10000"}, {"client-idle", "sleep"}, {"no-pin", "off"}});
  flags.Parse(argc, argv);
  if (flags.Word("client-idle") != "sleep" && flags.Word("client-idle") != "spin") {
    std::fprintf(stderr, "--client-idle takes sleep or spin\n");
    return 2;
  }
  constexpr auto kSpin = ClientWaits::kSpin;
  constexpr auto kSleep = ClientWaits::kSleep;
  constexpr auto kRecv = ClientWaits::kSleepOnSocket;
  std::vector<Kind> kinds = {{"futex ping-pong, hot", CoreWaits::kFutex, kSleep, false},
                             {"futex ping-pong", CoreWaits::kFutex, kSleep, true},
                             {"futex, client spins", CoreWaits::kFutex, kSpin, true},
                             {"eventfd, epoll, client spins", CoreWaits::kEpoll, kSpin, true},
                             {"eventfd, epoll, client sleeps", CoreWaits::kEpoll, kSleep, true},
                             {"eventfd, epoll, client spins, hot", CoreWaits::kEpoll, kSpin, false},
                             {"eventfd, io_uring, client spins", CoreWaits::kUring, kSpin, true},
                             {"eventfd, io_uring, client sleeps", CoreWaits::kUring, kSleep, true},
                             {"eventfd, epoll, client in recv", CoreWaits::kEpoll, kRecv, true},
                             {"eventfd, io_uring, client in recv", CoreWaits::kUring, kRecv, true},
                             {"eventfd, io_uring, client spins, hot", CoreWaits::kUring, kSpin, false},
                             {"futex, io_uring, client spins", CoreWaits::kUringFutex, kSpin, true},
                             {"core spins", CoreWaits::kSpin, kSpin, true},
                             {"core spins, hot", CoreWaits::kSpin, kSpin, false}};
  const int file = SharedFile("wake", kinds.size() * sizeof(Channel));
  auto* channels =
      reinterpret_cast<Channel*>(Map(file, kinds.size() * sizeof(Channel), PROT_READ | PROT_WRITE));
  std::vector<pid_t> cores;
  for (Kind& kind : kinds) {
    kind.channel = channels++;
    kind.to_core = eventfd(0, EFD_CLOEXEC);
    kind.to_client = eventfd(0, EFD_CLOEXEC);
    if (kind.client == ClientWaits::kSleepOnSocket) {
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0) Die("socketpair");
      kind.to_client = ends[0];
      kind.from_core = ends[1];
    }
    cores.push_back(StartCore(kind, flags.On("no-pin") ? -1 : 0));
  }
  if (!flags.On("no-pin")) PinTo(1);
  Client client(flags.Number("idle-us"), flags.Word("client-idle") == "spin", TicksPerNs() * 1000);
  usleep(50'000);
  for (std::uint64_t round = 0; round < flags.Number("rounds"); ++round)
    for (Kind& kind : kinds) {
      // Hot: the one before, at once, is what warmed it.
      if (!kind.idle) {
        for (int i = 0; i < 8; ++i) client.RoundTrip(kind);
        kind.trip_us.erase(kind.trip_us.end() - 8);
        continue;
      }
      client.RoundTrip(kind);
    }
  for (pid_t core : cores) {
    kill(core, SIGKILL);
    waitpid(core, nullptr, 0);
  }
  Print(kinds);
  return 0;
}

}  // namespace
}  // namespace lab

int main(int argc, char** argv) { return lab::Main(argc, argv); }
