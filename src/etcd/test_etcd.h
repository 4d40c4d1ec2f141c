// SPDX-License-Identifier: Apache-2.0
// A real etcd for tests, on loopback, with its data in a directory that goes with it: Debian's etcd-server.
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/random.h"
#include "base/test_directory.h"
#include "cistern/status.h"

namespace cistern::etcd {

class TestEtcd {
 public:
  // Not started. `arguments` go behind those that it needs; `scheme`: https needs arguments for it.
  explicit TestEtcd(std::vector<std::string> arguments = {}, std::string scheme = "http")
      : arguments_(std::move(arguments)), scheme_(std::move(scheme)) {
    port_ = FreePort();
  }
  ~TestEtcd() { Kill(); }
  TestEtcd(const TestEtcd&) = delete;
  TestEtcd& operator=(const TestEtcd&) = delete;

  static bool Installed() {
    const std::string path = std::getenv("PATH") != nullptr ? std::getenv("PATH") : "";
    for (std::size_t at = 0; at <= path.size();) {
      const std::size_t end = std::min(path.find(':', at), path.size());
      if (::access((path.substr(at, end - at) + "/etcd").c_str(), X_OK) == 0) return true;
      at = end + 1;
    }
    return false;
  }

  std::string endpoint() const { return Text(scheme_, "://127.0.0.1:", port_); }
  const std::string& directory() const { return directory_.path(); }
  // What it said, for the message of a test that fails.
  std::string log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

  // Returns once it serves. Another port if somebody took this one; after a Kill the same, which a connection
  // may have for a while.
  Status Start() {
    for (int attempt = 0; attempt < (ran_ ? 100 : 5); ++attempt) {
      Spawn();
      if (Serves()) return Status();
      Kill();
      if (!ran_) port_ = FreePort();
    }
    return Status(Code::kIoError, "etcd does not start; is Debian's etcd-server installed?\n" + log());
  }
  // SIGKILL; everything that it answered is on its disk.
  void Kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
    reader_.join();
  }
  // Stopped, it answers nothing and refuses nothing.
  void Pause() {
    ::kill(process_, SIGSTOP);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(process_), &info, WSTOPPED);
  }
  void Resume() { ::kill(process_, SIGCONT); }

  // Of one that is not running: its data, and another's in place of them.
  void Save(const std::string& name) { Copy(directory_.path() + "/data", directory_.path() + "/" + name); }
  void Restore(const std::string& name) { Copy(directory_.path() + "/" + name, directory_.path() + "/data"); }

 private:
  // Below those that the system gives to connections: one of them would keep it from an etcd that is started
  // again, and a node that looks for one that is gone would find itself there.
  static std::uint16_t FreePort() {
    constexpr std::uint64_t kLowest = 10'000, kHighest = 14'999;
    static Random random(static_cast<std::uint64_t>(::getpid()));
    for (;;) {
      const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<std::uint16_t>(random.Between(kLowest, kHighest)));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0)
        return ntohs(address.sin_port);
    }
  }
  static void Copy(const std::string& from, const std::string& to) {
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  }

  void Spawn() {
    // A fast clock makes one member a leader in 0.1 s instead of 1; peers' port 0 is any.
    std::vector<std::string> words = {"etcd",
                                      "--data-dir",
                                      directory_.path() + "/data",
                                      "--logger",
                                      "zap",
                                      "--log-outputs",
                                      "stderr",
                                      "--listen-client-urls",
                                      endpoint(),
                                      "--advertise-client-urls",
                                      endpoint(),
                                      "--listen-peer-urls",
                                      "http://127.0.0.1:0",
                                      "--initial-advertise-peer-urls",
                                      "http://127.0.0.1:0",
                                      "--initial-cluster",
                                      "default=http://127.0.0.1:0",
                                      "--heartbeat-interval",
                                      "10",
                                      "--election-timeout",
                                      "100"};
    words.insert(words.end(), arguments_.begin(), arguments_.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::array<int, 2> ends{};
    CISTERN_ASSERT(::pipe2(ends.data(), O_CLOEXEC) == 0);
    serves_ = ended_ = false;
    log_.clear();
    const pid_t parent = ::getpid();
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(ends[1], STDERR_FILENO);
      ::dup2(ends[1], STDOUT_FILENO);
      if (::getppid() == parent) ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    reader_ = std::thread([this, from = Fd(ends[0])] { Read(from.get()); });
  }
  void Read(int from) {
    std::array<char, 4096> bytes{};
    for (;;) {
      const ssize_t count = ::read(from, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      const std::lock_guard lock(mutex_);
      if (count > 0) log_.append(bytes.data(), static_cast<std::size_t>(count));
      serves_ = serves_ || log_.find("\"serving client traffic") != std::string::npos;
      ended_ = count <= 0;
      changed_.notify_all();
      if (ended_) return;
    }
  }
  bool Serves() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return serves_ || ended_; });
    ran_ = ran_ || serves_;
    return serves_;
  }

  const std::vector<std::string> arguments_;
  const std::string scheme_;
  const TestDirectory directory_;
  std::uint16_t port_ = 0;
  pid_t process_ = -1;
  std::thread reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string log_;
  bool serves_ = false, ended_ = false, ran_ = false;
};

}  // namespace cistern::etcd
