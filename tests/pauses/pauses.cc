// SPDX-License-Identifier: Apache-2.0
// Runs a program and pauses single threads of it, and of the processes that it starts, for random times, as a
// host does that has more to run than processors. A whole process that stands is seen by its own clocks;
// between two threads any order may come to be that the code allows. The program's exit code is this one's.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "command_line.h"

namespace cistern {
namespace {

constexpr int kSignalled = 128;  // and the signal, as shells say it

struct PauseOptions {
  std::uint64_t seed = 1, every_us = 20'000, longest_us = 300'000;
  std::vector<std::string> program;
};

struct Thread {
  bool asked = false, stands = false;
  Instant until;
};

class Pauses {
 public:
  explicit Pauses(const PauseOptions& options) : options_(options), random_(options.seed) {}

  int Run() {
    const pid_t program = Start();
    if (program < 0) return kExitFailed;
    next_ = clock_.Now().PlusUs(Gap());
    for (;;) {
      bool any = false;
      if (const std::optional<int> code = TakeStops(program, &any)) {
        std::fprintf(stderr, "pauses: %llu\n", static_cast<unsigned long long>(count_));
        return *code;
      }
      const Instant now = clock_.Now();
      for (auto& [id, thread] : threads_)
        if (thread.stands && now >= thread.until) Continue(id, thread);
      if (now >= next_) PauseOne(now);
      if (!any) AwaitStop(now);
    }
  }

 private:
  // Under this tracer from its first instruction on; it ends with it.
  pid_t Start() {
    std::vector<char*> arguments;
    for (std::string& argument : options_.program) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    ::sigemptyset(&child_);
    ::sigaddset(&child_, SIGCHLD);
    ::sigset_t before;
    ::sigprocmask(SIG_BLOCK, &child_, &before);
    const pid_t program = ::fork();
    if (program == 0) {
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
      ::raise(SIGSTOP);
      ::execvp(arguments[0], arguments.data());
      std::fprintf(stderr, "pauses: %s: %s\n", arguments[0], std::strerror(errno));
      ::_exit(kExitUsage);
    }
    int state = 0;
    constexpr long kFollow = PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                             PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    if (program < 0 || ::waitpid(program, &state, WUNTRACED) != program ||
        ::ptrace(PTRACE_SEIZE, program, nullptr, kFollow) != 0) {
      std::fprintf(stderr, "pauses: the program cannot be traced: %s\n", std::strerror(errno));
      if (program > 0) ::kill(program, SIGKILL);
      return -1;
    }
    threads_[program];
    ::kill(program, SIGCONT);
    return program;
  }

  std::optional<int> TakeStops(pid_t program, bool* any) {
    int state = 0;
    for (pid_t id; (id = ::waitpid(-1, &state, __WALL | WNOHANG)) > 0; *any = true) {
      if (WIFSTOPPED(state)) {
        TakeStop(id, WSTOPSIG(state), state >> 16);
        continue;
      }
      threads_.erase(id);
      if (id == program) return WIFEXITED(state) ? WEXITSTATUS(state) : kSignalled + WTERMSIG(state);
    }
    return std::nullopt;
  }
  // ptrace(2): with PTRACE_SEIZE an event is in the third byte; a stop of the whole process, which only its
  // SIGCONT ends, is PTRACE_EVENT_STOP by another signal than SIGTRAP.
  void TakeStop(pid_t id, int signal, int event) {
    Thread& thread = threads_[id];
    if (event == PTRACE_EVENT_STOP && signal != SIGTRAP) {
      thread.asked = false;
      ::ptrace(PTRACE_LISTEN, id, nullptr, nullptr);
    } else if (event == PTRACE_EVENT_STOP && thread.asked) {
      thread.stands = true;
    } else {
      ::ptrace(PTRACE_CONT, id, nullptr, event != 0 ? 0 : signal);
    }
  }
  // Or until a pause begins or ends.
  void AwaitStop(Instant now) {
    Instant until = next_;
    for (const auto& [id, thread] : threads_)
      if (thread.stands) until = std::min(until, thread.until);
    const std::int64_t ns = std::max<std::int64_t>(until.NsSince(now), 0);
    const timespec time{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    ::sigtimedwait(&child_, nullptr, &time);
  }
  void Continue(pid_t id, Thread& thread) {
    thread.asked = thread.stands = false;
    ::ptrace(PTRACE_CONT, id, nullptr, nullptr);
  }

  // The gaps between pauses as of arrivals that know nothing of each other.
  std::int64_t Gap() {
    return static_cast<std::int64_t>(-std::log(1 - random_.Unit()) * static_cast<double>(options_.every_us));
  }
  // Mostly short, now and then the longest.
  void PauseOne(Instant now) {
    next_ = now.PlusUs(Gap());
    std::vector<pid_t> running;
    for (const auto& [id, thread] : threads_)
      if (!thread.asked) running.push_back(id);
    if (running.empty()) return;
    const pid_t id = running[random_.Below(running.size())];
    if (::ptrace(PTRACE_INTERRUPT, id, nullptr, nullptr) != 0) return;
    Thread& thread = threads_[id];
    ++count_;
    thread.asked = true;
    thread.until = now.PlusUs(
        static_cast<std::int64_t>(std::pow(random_.Unit(), 3) * static_cast<double>(options_.longest_us)));
  }

  PauseOptions options_;
  Random random_;
  SystemClock clock_;
  std::map<pid_t, Thread> threads_;
  Instant next_;
  ::sigset_t child_{};
  std::uint64_t count_ = 0;
};

int Main(int argc, const char* const* argv) {
  PauseOptions options;
  CommandLine line("pauses", "Runs PROGRAM and pauses single threads of it for random times.",
                   "pauses --seed 7 -- build/release/bin/client_whole_test --gtest_filter='Switch.*'");
  line.Count("--seed", "of the random times", &options.seed, 0, UINT64_MAX);
  line.Duration("--every", "mean time between two pauses", &options.every_us);
  line.Duration("--longest", "the longest pause; the mean is a quarter of it", &options.longest_us);
  line.Arguments("PROGRAM", "the program and its arguments, behind --", &options.program);
  if (const auto code = line.Parse(argc, argv)) return *code;
  return Pauses(options).Run();
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) { return cistern::RunProgram("pauses", cistern::Main, argc, argv); }
