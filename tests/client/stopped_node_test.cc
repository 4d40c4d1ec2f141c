// SPDX-License-Identifier: Apache-2.0
// Clients of a node that stands still, and what they find when it goes on.
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "client/client.h"
#include "client/connection.h"
#include "client/near_node.h"
#include "node_process.h"
#include "transfer/transfers.h"
#include "wire/protocol.h"

namespace cistern {
namespace {

class Stopped : public NodeProcess {
 protected:
  void Stop() {
    kill(child_, SIGSTOP);
    waitpid(child_, nullptr, WUNTRACED);
  }
  void GoOn() { kill(child_, SIGCONT); }
  static bool Sleeps(pid_t thread) {
    std::string line;
    std::ifstream file(Text("/proc/self/task/", thread, "/stat"));
    std::getline(file, line);
    const std::size_t name_ends = line.rfind(") ");
    return name_ends != std::string::npos && line[name_ends + 2] == 'S';
  }
};

// Each put wants more than the session has, for which it asks the node.
TEST_F(Stopped, PutsThatEndedMeanwhileLeaveNoAnswersInTheWayOfOneThatComesLater) {
  Stop();
  const std::vector<std::byte> body = BodyOf(2, 2u << 20);
  for (int i = 0; i < 400; ++i) {
    const Status late = store_->Put(ns_, KeyOf(2), std::nullopt, body, {.deadline_us = 1'000});
    ASSERT_EQ(late.code(), Code::kTooLate) << i << ": " << late.ToString();
  }
  GoOn();
  Result<Staging> large = store_->AllocateStaging(8u << 20, 60'000'000);
  ASSERT_TRUE(large.has_value()) << large.error().ToString();
  *large = Staging();
  const Status put = store_->Put(ns_, KeyOf(2), std::nullopt, body, {.deadline_us = 60'000'000});
  EXPECT_TRUE(put.ok()) << put.ToString();
}

// A call that waited for more than its deadline would bring the watchdog.
TEST_F(Stopped, P3StagingIsGrantedOrRefusedByItsDeadline) {
  Stop();
  for (int i = 0; i < 400; ++i) {
    const Result<Staging> late = store_->AllocateStaging(8u << 20, 1'000);
    ASSERT_FALSE(late.has_value());
    ASSERT_EQ(late.error().code(), Code::kTooLate) << i << ": " << late.error().ToString();
  }
  EXPECT_EQ(store_->AllocateStaging(8u << 20, 0).error().code(), Code::kInvalid);
  GoOn();
  const Result<Staging> granted = store_->AllocateStaging(8u << 20, 60'000'000);
  EXPECT_TRUE(granted.has_value()) << granted.error().ToString();
}

TEST_F(Stopped, AThreadThatIsCancelledWhileItWaitsLeavesTheHandleToOthers) {
  struct Waits {
    Store& store;
    std::atomic<pid_t> thread = 0;
  } waits{*store_};
  Stop();
  pthread_t thread;
  const auto wait = [](void* of) -> void* {
    auto& it = *static_cast<Waits*>(of);
    it.thread = gettid();
    static_cast<void>(it.store.StatusJson(300'000'000));
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, wait, &waits), 0);
  Until([&] { return waits.thread != 0 && Sleeps(waits.thread); });
  pthread_cancel(thread);
  void* ended = nullptr;
  pthread_join(thread, &ended);
  EXPECT_EQ(ended, PTHREAD_CANCELED);
  GoOn();
  for (int i = 0; i < 3; ++i) {
    const Result<std::string> state = store_->StatusJson(60'000'000);
    ASSERT_TRUE(state.has_value()) << state.error().ToString();
  }
}

// The sockets of a process, which stay open when it dies, as where a forked child of it has them; none where
// the kernel gives them to nobody.
std::vector<Fd> SocketsOf(pid_t process) {
  const Fd handle(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  std::vector<Fd> sockets;
  for (const auto& open : std::filesystem::directory_iterator(Text("/proc/", process, "/fd"))) {
    if (!std::filesystem::is_socket(open.status())) continue;
    Fd copy(static_cast<int>(
        syscall(SYS_pidfd_getfd, handle.get(), std::stoi(open.path().filename().string()), 0)));
    if (copy.valid()) sockets.push_back(std::move(copy));
  }
  return sockets;
}

TEST_F(Stopped, WhoWaitsHearsThatTheNodeDiedThoughAForkedChildHasItsSockets) {
  const std::vector<Fd> kept = SocketsOf(child_);
  if (kept.empty()) GTEST_SKIP() << "sockets of another process are not to be had";
  Stop();
  std::atomic<pid_t> thread = 0;
  std::future<Result<std::string>> call = std::async(std::launch::async, [&] {
    thread = gettid();
    return store_->StatusJson(60'000'000);
  });
  Until([&] { return thread != 0 && Sleeps(thread); });
  Kill();
  EXPECT_EQ(call.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  const Result<std::string> got = call.get();
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code(), Code::kGone) << got.error().ToString();
}

TEST_F(Stopped, TheEventDescriptorTellsThatTheNodeDiedThoughAForkedChildHasItsSockets) {
  const std::vector<Fd> kept = SocketsOf(child_);
  if (kept.empty()) GTEST_SKIP() << "sockets of another process are not to be had";
  pollfd events{.fd = store_->event_fd(), .events = POLLIN, .revents = 0};
  store_->Poll(nullptr);
  ASSERT_EQ(poll(&events, 1, 0), 0);
  Kill();
  EXPECT_EQ(poll(&events, 1, 30'000), 1);
  EXPECT_EQ(store_->StatusJson(60'000'000).error().code(), Code::kGone);
}

// A client of its own whose event descriptor nobody has yet, and a thread that sleeps in its call to the
// node, which stands.
// Of a pid namespace of its own, in which the node has no number.
TEST_F(Stopped, TheNumberOfANodeThatIsGoneIsTheOneInItsClientsPidNamespace) {
  int told[2], asked[2];
  ASSERT_EQ(pipe(told), 0);
  ASSERT_EQ(pipe(asked), 0);
  const auto why = [this](Store& store) {
    return std::string(store.Put(ns_, KeyOf(3), std::nullopt, BodyOf(3, kBlockBytes)).message());
  };
  const pid_t outer = fork();
  if (outer == 0) {
    if (unshare(CLONE_NEWPID) != 0) _exit(1);
    const pid_t inner = fork();
    if (inner == 0) {
      ConnectOptions connect;
      connect.socket = options_.socket;
      connect.deadline_us = 60'000'000;
      Result<Store> store = Store::Connect(connect);
      char byte = 'c';
      if (!store || write(told[1], &byte, 1) != 1 || read(asked[0], &byte, 1) != 1) _exit(1);
      const std::string said = why(*store);
      _exit(write(told[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
    }
    waitpid(inner, nullptr, 0);
    _exit(0);
  }
  close(told[1]);
  char byte;
  const bool connected = read(told[0], &byte, 1) == 1;
  const pid_t node = child_;
  Kill();
  std::array<char, 512> said{};
  if (connected) {
    ASSERT_EQ(write(asked[1], "k", 1), 1);
    EXPECT_GT(read(told[0], said.data(), said.size() - 1), 0);
  }
  waitpid(outer, nullptr, 0);
  for (int fd : {told[0], asked[0], asked[1]}) close(fd);
  EXPECT_NE(why(*store_).find(Text(" (process ", node, ") is gone")), std::string::npos) << why(*store_);
  if (!connected) GTEST_SKIP() << "pid namespaces are not allowed here";
  EXPECT_NE(std::string_view(said.data()).find("socket is gone"), std::string_view::npos) << said.data();
}

class SleepingCall : public Stopped {
 protected:
  void Begin(std::int64_t deadline_us) {
    ConnectOptions connect;
    connect.socket = options_.socket;
    connect.deadline_us = 60'000'000;
    own_.emplace(*Store::Connect(connect));
    own_ns_ = AttachTest(*own_);
    Stop();
    answered_ = false;
    std::atomic<pid_t> thread = 0;
    waits_ = std::thread([&, deadline_us] {
      thread = gettid();
      EXPECT_TRUE(own_->Touch(own_ns_, std::span(&key_, 1), deadline_us).Wait().has_value());
      answered_ = true;
    });
    Until([&] { return thread != 0 && Sleeps(thread); });
  }

  const BlockKey key_ = KeyOf(1);
  std::optional<Store> own_;
  Namespace own_ns_;
  std::atomic<bool> answered_ = false;
  std::thread waits_;
};

// The thread that waits sleeps for the signal that the descriptor is made of from then on.
TEST_F(SleepingCall, AnEventDescriptorThatIsAskedForMeanwhileMissesNoAnswer) {
  for (int round = 0; round < 20; ++round) {
    Begin(60'000'000);
    pollfd events{.fd = own_->event_fd(), .events = POLLIN, .revents = 0};
    own_->Poll(nullptr);
    Ticket<std::uint32_t> ticket = own_->Touch(own_ns_, std::span(&key_, 1), 60'000'000);
    GoOn();
    waits_.join();
    std::vector<std::uint64_t> ready;
    while (ready.empty()) {
      ASSERT_EQ(poll(&events, 1, 300'000), 1) << "round " << round;
      own_->Poll(&ready);
    }
    EXPECT_EQ(ready, std::vector{ticket.id()});
  }
}

// Who polls meanwhile takes nothing that a sleeping thread is to be woken by.
TEST_F(SleepingCall, WhoPollsFromAnEventDescriptorsBeginOnTakesNoSignalOfIt) {
  for (int round = 0; round < 20; ++round) {
    Begin(3'600'000'000);
    own_->event_fd();
    GoOn();
    Until([&] {
      own_->Poll(nullptr);
      return answered_.load();
    });
    waits_.join();
  }
}

// Takes a message with its descriptors from one socket and hands it on over another, once `see` has seen
// them.
std::vector<Fd> HandOn(int from, int to, const std::function<void(const std::vector<Fd>&)>& see = {}) {
  std::array<std::byte, 1024> message;
  iovec bytes{.iov_base = message.data(), .iov_len = message.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(wire::kMaxDescriptors * sizeof(int))> control;
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t got = recvmsg(from, &header, MSG_CMSG_CLOEXEC);
  EXPECT_GT(got, 0);
  if (got <= 0) return {};
  std::vector<Fd> descriptors;
  const cmsghdr* const part = CMSG_FIRSTHDR(&header);
  for (std::size_t at = 0; part != nullptr && CMSG_LEN(at) < part->cmsg_len; at += sizeof(int)) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(part) + at, sizeof(fd));
    descriptors.emplace_back(fd);
  }
  if (see) see(descriptors);
  bytes.iov_len = static_cast<std::size_t>(got);
  EXPECT_EQ(sendmsg(to, &header, MSG_NOSIGNAL), got);
  return descriptors;
}

// A client that somebody stands before, who sees what the node gives it.
class Handshakes : public NodeProcess {
 protected:
  void SetUp() override {
    NodeProcess::SetUp();
    Dial();
  }
  void Dial() {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    between_ = Fd(ends[0]);
    to_client_ = ends[1];
    to_node_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    options_.socket.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(connect(to_node_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  auto Connect(const ConnectOptions& options, const std::function<void(const std::vector<Fd>&)>& see = {}) {
    std::thread hands_on([&] {
      HandOn(between_.get(), to_node_.get());
      greeted_ns_ = client::NowNs();
      given_ = HandOn(to_node_.get(), between_.get(), see);
    });
    auto connected = client::Client::Connect(to_client_, options, {});
    hands_on.join();
    return connected;
  }

  Fd between_, to_node_;
  int to_client_ = -1;
  std::int64_t greeted_ns_ = 0;
  std::vector<Fd> given_;
};

// A connect has one deadline, and telling the engine's name is part of it.
TEST_F(Handshakes, P3AnEnginesNameIsToldWithinTheDeadlineOfItsConnect) {
  constexpr std::int64_t kDeadlineUs = 60'000'000;
  ConnectOptions options;
  options.engine_name = "e1";
  options.deadline_us = kDeadlineUs;
  const auto connected = Connect(options);
  ASSERT_TRUE(connected.has_value()) << connected.error().ToString();
  ASSERT_EQ(given_.size(), 6u);
  wire::Submission first;
  ASSERT_EQ(pread(given_[2].get(), &first, sizeof(first), offsetof(wire::SessionMemory, submissions)),
            static_cast<ssize_t>(sizeof(first)));
  EXPECT_EQ(first.op, wire::Op::kIntroduce);
  EXPECT_LE(first.deadline_ns, greeted_ns_ + kDeadlineUs * 1000);
}

// Deadlines, leases and terms are of one clock: whose clocks are others is not served.
TEST_F(Handshakes, WhoIsInAnotherTimeNamespaceThanTheNodeIsRefusedByName) {
  const auto shift = [](std::size_t clock, std::int64_t ns) {
    return [=](const std::vector<Fd>& given) {
      std::int64_t at = 0;
      ASSERT_EQ(given.size(), 6u);
      ASSERT_EQ(pread(given[2].get(), &at, sizeof(at), static_cast<off_t>(clock)),
                static_cast<ssize_t>(sizeof(at)));
      at += ns;
      ASSERT_EQ(pwrite(given[2].get(), &at, sizeof(at), static_cast<off_t>(clock)),
                static_cast<ssize_t>(sizeof(at)));
    };
  };
  for (const std::size_t clock :
       {offsetof(wire::SessionMemory, monotonic_ns), offsetof(wire::SessionMemory, boot_ns)}) {
    for (const std::int64_t ns : {-3'600'000'000'000, 3'600'000'000'000}) {
      const auto connected = Connect({.deadline_us = 60'000'000}, shift(clock, ns));
      ASSERT_FALSE(connected.has_value()) << clock << " " << ns;
      EXPECT_EQ(connected.error().code(), Code::kMismatch);
      EXPECT_NE(connected.error().message().find("time namespace"), std::string::npos)
          << connected.error().message();
      Dial();
    }
  }
  EXPECT_TRUE(Connect({.deadline_us = 60'000'000}).has_value());
}

// Saves of a session that has all of its staging in use, and then of a node that stands still: the first of
// them asks it for more, and waits for the answer.
class StoppedSaves : public Stopped {
 protected:
  void SetUp() override {
    Stopped::SetUp();
    const transfer::Fragment fragment{memory_.data(), memory_.size(), memory_.size()};
    pages_ = std::make_shared<const transfer::Pages>(
        *transfer::Pages::Make({.fragments = std::span(&fragment, 1), .pages = 1}));
    shared_ = std::make_shared<Store>(std::move(*store_));
    store_.reset();
    transfers_ = *transfer::Transfers::Make(shared_, {});
    Save(2, 60'000'000);  // asks for what saves may have in staging
    ASSERT_EQ(transfers_->Wait(60'000'000).size(), 1u);
    for (auto more = Take(); more; more = Take()) all_.push_back(std::move(*more));
    Stop();
  }
  Result<Staging> Take() { return shared_->AllocateStaging(1u << 20); }
  std::uint64_t Save(std::uint64_t number, std::int64_t deadline_us) {
    transfer::PageSave save;
    save.ns = ns_;
    save.keys = std::make_shared<const std::vector<BlockKey>>(1, KeyOf(number));
    save.pages = pages_;
    save.page_ids = {0};
    save.parents.resize(1);
    save.deadline_us = deadline_us;
    return *transfers_->Submit(std::move(save));
  }
  // Of this process, by its name: whether it waits for the node.
  static bool WaitsForNode(const std::string& thread) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name, call;
      std::ifstream(task.path() / "comm") >> name;
      std::ifstream(task.path() / "syscall") >> call;
      if (name == thread && call == std::to_string(SYS_ppoll)) return true;
    }
    return false;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(2u << 20);
  std::shared_ptr<const transfer::Pages> pages_;
  std::shared_ptr<Store> shared_;
  std::unique_ptr<transfer::Transfers> transfers_;
  std::vector<Staging> all_;
};

TEST_F(StoppedSaves, P3OneBehindAnotherIsReportedByItsDeadlineToWhoWaitsForTheDescriptor) {
  const std::uint64_t first = Save(3, 300'000'000), second = Save(4, 1'000);
  pollfd readable{.fd = transfers_->event_fd(), .events = POLLIN, .revents = 0};
  std::vector<transfer::TransferDone> done;
  while (done.empty() && poll(&readable, 1, 60'000) == 1) done = transfers_->Poll();
  GoOn();
  all_.clear();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, second);
  EXPECT_EQ(done[0].outcomes[0], Code::kTooLate);
  done = transfers_->Wait(60'000'000);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, first);
  EXPECT_EQ(done[0].outcomes[0], Code::kOk) << done[0].message;
}

// Each of the others would wait for the node as long as the first has: 35 s together.
TEST_F(StoppedSaves, P3OneOfManyUnderWayIsReportedByItsDeadline) {
  const std::uint64_t first = Save(3, 6'000'000);
  for (std::uint64_t number = 4; number < 11; ++number) Save(number, 300'000'000);
  pollfd readable{.fd = transfers_->event_fd(), .events = POLLIN, .revents = 0};
  std::vector<transfer::TransferDone> done;
  while (done.empty() && poll(&readable, 1, 25'000) == 1) done = transfers_->Poll();
  GoOn();
  all_.clear();
  ASSERT_EQ(done.size(), 1u) << "the watchdog barks";
  EXPECT_EQ(done[0].id, first);
  EXPECT_EQ(done[0].outcomes[0], Code::kTooLate);
}

TEST_F(StoppedSaves, ClosingWaitsForNoDeadlineOfOneThatWaits) {
  if (!std::ifstream("/proc/self/syscall"))
    GTEST_SKIP() << "this kernel does not say what a thread waits for";
  const std::uint64_t save = Save(3, 300'000'000);
  Until([&] { return WaitsForNode("cistern-save"); });
  auto closing = std::async(std::launch::async, [&] { transfers_->Close(); });
  EXPECT_EQ(closing.wait_for(std::chrono::minutes(1)), std::future_status::ready) << "the watchdog barks";
  const std::vector<transfer::TransferDone> done = transfers_->Poll();
  GoOn();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, save);
  EXPECT_EQ(done[0].outcomes[0], Code::kTooLate);
}

}  // namespace
}  // namespace cistern
