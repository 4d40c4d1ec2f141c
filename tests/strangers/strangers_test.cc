// SPDX-License-Identifier: Apache-2.0
// Clients that lie, stall, fork and die, against a whole node that serves an honest one meanwhile (R12, R13,
// R15).
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "../real_node.h"
#include "base/random.h"
#include "client/connection.h"
#include "wire/protocol.h"

namespace cistern {
namespace {

constexpr std::size_t kBytes = 64u << 10;
constexpr std::uint64_t kBlocks = 16;

// A session whose memory the test writes as it likes.
class Stranger {
 public:
  explicit Stranger(const ConnectOptions& options) : connection_(*client::ConnectToNode(options)) {}
  wire::SessionMemory& page() { return *reinterpret_cast<wire::SessionMemory*>(connection_.session.data()); }
  std::uint64_t Completed() { return std::atomic_ref(page().completed).load(); }
  std::uint64_t Taken() { return std::atomic_ref(page().taken).load(); }
  void Wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] ssize_t written = write(connection_.core_event.get(), &one, sizeof(one));
  }
  void Push(const wire::Submission& entry) {
    page().submissions[page().submitted % wire::kRingEntries] = entry;
    std::atomic_ref(page().submitted).fetch_add(1);
    Wake();
  }
  bool Ended() {
    char byte;
    return recv(connection_.socket.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }

 private:
  client::Connection connection_;
};

class Strangers : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::uint64_t n = 0; n < kBlocks; ++n)
      ASSERT_TRUE(PutBlock(honest, ns, n, n == 0 ? std::nullopt : std::optional(n - 1), kBytes).ok());
  }
  // Every call of the honest client gives what it must.
  void Served() {
    static std::uint64_t next = 1000;
    const Status put = PutBlock(honest, ns, next, kBlocks - 1, kBytes);
    ASSERT_TRUE(put.ok()) << put.ToString();
    for (std::uint64_t n : {std::uint64_t{0}, kBlocks - 1, next}) {
      Result<std::vector<std::byte>> got = honest.Get(ns, KeyOf(n));
      ASSERT_TRUE(got.has_value()) << n << ": " << got.error().ToString();
      ASSERT_EQ(*got, BodyOf(n, kBytes)) << n;
    }
    const BlockRef ref{KeyOf(next)};
    Result<Lease> lease = honest.Acquire(ns, std::span(&ref, 1)).Wait();
    ASSERT_TRUE(lease.has_value()) << lease.error().ToString();
    next++;
  }
  std::int64_t SoonNs() { return client::DeadlineNs(60'000'000); }
  // A write of one block that begins at the start of staging.
  wire::Submission WriteInto(Stranger& stranger) {
    wire::WriteItem item;
    item.key.size = 32;
    item.key.bytes.fill(std::byte{77});
    item.bytes = 4096;
    item.put_low = 1;
    std::memcpy(stranger.page().arguments, &item, sizeof(item));
    wire::Submission entry;
    entry.op = wire::Op::kWrite;
    entry.namespace_slot = theirs.slot();
    entry.incarnation = theirs.incarnation();
    entry.deadline_ns = SoonNs();
    entry.args_bytes = sizeof(item);
    entry.reply_offset = 65536;
    entry.reply_bytes = 4096;
    entry.a = 1;
    return entry;
  }

  RealNode node;
  Store honest = node.Connect();
  Namespace ns = AttachTest(honest);
  // Of the tenant's, so a stranger may write to it and drop it.
  Namespace theirs = AttachTest(honest, "theirs");
};

TEST_F(Strangers, ForgedIndicesEndTheSessionAndNothingElse) {
  Random random(1);
  for (int round = 0; round < 60; ++round) {
    Stranger stranger(node.options());
    wire::SessionMemory& page = stranger.page();
    std::atomic_ref(page.touched).store(random.Next());
    std::atomic_ref(page.collected).store(round % 3 == 0 ? random.Next() : 0);
    // A forged count comes in either way: far ahead, or just past the ring.
    std::atomic_ref(page.submitted)
        .store(round % 2 == 0 ? random.Next() | (1 << 20) : wire::kRingEntries + 1);
    stranger.Wake();
    Until([&] { return stranger.Ended(); });
    if (round % 10 == 0) Served();
  }
  EXPECT_EQ(StatusNumber(honest, "ended_forged"), 60u);
  Until([&] { return StatusNumber(honest, "sessions") == 1; });
}

TEST_F(Strangers, ForgedEntriesAreAnsweredOrEndTheSession) {
  Random random(2);
  for (int round = 0; round < 40; ++round) {
    Stranger stranger(node.options());
    std::span<std::byte> arguments = stranger.page().arguments;
    for (std::size_t i = 0; i < 4096; ++i) arguments[i] = static_cast<std::byte>(random.Next());
    for (int i = 0; i < 100; ++i) {
      wire::Submission entry;
      auto* words = reinterpret_cast<std::uint64_t*>(&entry);
      for (std::size_t w = 0; w < sizeof(entry) / 8; ++w) words[w] = random.Next();
      if (random.Below(4) != 0) {  // past the first gates
        entry.op = static_cast<wire::Op>(random.Below(wire::kLastOp + 2));
        entry.namespace_slot = theirs.slot();
        entry.incarnation = theirs.incarnation();
        entry.deadline_ns = SoonNs();
        entry.args_offset %= 4096;
        entry.args_bytes %= 4096;
        entry.reply_offset %= 65536;
        entry.reply_bytes %= 65536;
      }
      stranger.Push(entry);
      Until([&] { return stranger.Ended() || stranger.Taken() == stranger.page().submitted; });
      std::atomic_ref(stranger.page().collected).store(stranger.Completed());
    }
    if (round % 10 == 0) Served();
  }
  Served();
}

TEST_F(Strangers, R13EntriesAndArgumentsChangedWhileTheyAreReadAreOneThingOrTheOther) {
  Stranger stranger(node.options());
  const wire::Submission good = WriteInto(stranger);
  std::atomic<bool> stop = false;
  std::thread mutator([&] {
    Random random(3);
    auto flip = [&](void* at, std::size_t bytes) {
      auto* byte = static_cast<std::uint8_t*>(at) + random.Below(bytes);
      std::atomic_ref(*byte).fetch_xor(static_cast<std::uint8_t>(random.Next()), std::memory_order_relaxed);
    };
    while (!stop) {
      // Keys, lengths, offsets of the item; op, flags, ticket and values of the entries. Not their ranges:
      // those would end the session.
      flip(stranger.page().arguments, sizeof(wire::WriteItem));
      const std::uint64_t entry = random.Below(wire::kRingEntries);
      flip(&stranger.page().submissions[entry], 16);
      flip(&stranger.page().submissions[entry].a, 8);
    }
  });
  for (int i = 0; i < 20'000 && !stranger.Ended(); ++i) {
    stranger.Push(good);
    Until([&] { return stranger.Ended() || stranger.Taken() == stranger.page().submitted; });
    std::atomic_ref(stranger.page().collected).store(stranger.Completed());
    if (i % 2'000 == 0) Served();
  }
  stop = true;
  mutator.join();
  Served();
}

TEST_F(Strangers, ACompletionThatIsNeverCollectedHoldsNobodyUp) {
  Stranger stranger(node.options());
  wire::Submission entry = WriteInto(stranger);
  for (std::uint32_t i = 0; i < 5 * wire::kRingEntries; ++i) {
    stranger.Push(entry);
    Until([&] { return stranger.Taken() == stranger.page().submitted; });
  }
  Until([&] { return StatusNumber(honest, "completions_lost") == 4 * wire::kRingEntries; });
  EXPECT_EQ(stranger.Completed(), wire::kRingEntries);
  EXPECT_FALSE(stranger.Ended());
  Served();
}

TEST_F(Strangers, R15AForkedChildIsDeniedAndHarmsNothing) {
  const BlockRef ref{KeyOf(0)};
  const BlockKey key = KeyOf(0);
  std::optional<Lease> lease = *honest.Acquire(ns, std::span(&ref, 1), {.lease_us = kMaxLeaseUs}).Wait();
  std::optional<Staging> staging = *honest.AllocateStaging(4096);
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    auto denied = [&](const auto& result) {
      wrong += result.has_value() || result.error().code() != Code::kDenied;
    };
    std::array<std::byte, 16> to;
    ReadRange range{.bytes = to.size(), .to = to.data()};
    BlockRead read{.key = key, .ranges = std::span(&range, 1)};
    BlockWrite write{.key = key, .data = std::span(to)};
    const PutId put{1, 1};
    denied(honest.Match(ns, std::span(&key, 1)).Wait());
    denied(honest.Read(ns, std::span(&read, 1)).Wait());
    denied(honest.Acquire(ns, std::span(&ref, 1)).Wait());
    denied(honest.AllocateStaging(4096));
    denied(honest.Write(ns, std::span(&write, 1)).Wait());
    denied(honest.Publish(ns, std::span(&put, 1)).Wait());
    denied(honest.Touch(ns, std::span(&key, 1)).Wait());
    denied(honest.Drop(ns, std::span(&key, 1)).Wait());
    denied(honest.DropNamespace(ns).Wait());
    denied(honest.StatusJson());
    denied(honest.Attach(ns.spec()));
    wrong += lease->still_good();
    wrong += honest.Poll(nullptr) != 0;
    // What the child destroys is the parent's still.
    lease.reset();
    staging.reset();
    {
      Store gone = std::move(honest);
    }
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(lease->still_good());
  EXPECT_EQ(StatusNumber(honest, "leases"), 1u);
  Served();
}

TEST_F(Strangers, R12WritingToTheArenaDiesInTheClient) {
  const BlockRef ref{KeyOf(0)};
  Lease lease = *honest.Acquire(ns, std::span(&ref, 1), {.lease_us = kMaxLeaseUs}).Wait();
  auto* data = const_cast<std::byte*>(lease.views()[0].data);
  const auto page = reinterpret_cast<std::uintptr_t>(data) & ~std::uintptr_t{4095};
  EXPECT_NE(mprotect(reinterpret_cast<void*>(page), 4096, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(errno, EACCES);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    *const_cast<volatile std::byte*>(data) = std::byte{0xff};
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  Served();
}

TEST_F(Strangers, AForeignOwnerTokenOpensNothing) {
  OwnerToken guessed = honest.owner();
  guessed[0] ^= std::byte{1};
  Result<Store> foreign = Store::Connect(node.options(guessed));
  ASSERT_FALSE(foreign.has_value());
  EXPECT_EQ(foreign.error().code(), Code::kDenied);
  // Nor does another owner's session publish or drop what is held.
  const std::vector<std::byte> body = BodyOf(500, kBytes);
  BlockWrite write{.key = KeyOf(500), .put_id = {5, 5}, .data = body};
  ASSERT_EQ(honest.Write(ns, std::span(&write, 1), {.held = true}).Wait()->outcomes[0].code, Code::kOk);
  Store other = node.Connect();
  AttachTest(other);
  Result<std::uint32_t> published = other.Publish(ns, std::span(&write.put_id, 1)).Wait();
  EXPECT_EQ(published.error().code(), Code::kDenied);
  EXPECT_EQ(other.Abandon(ns, std::span(&write.put_id, 1)).Wait().error().code(), Code::kDenied);
  // One of the same engine does.
  Store joined = node.Connect(honest.owner());
  EXPECT_EQ(joined.owner(), honest.owner());
  EXPECT_EQ(*joined.Publish(ns, std::span(&write.put_id, 1)).Wait(), 1u);
  EXPECT_EQ(*honest.Get(ns, KeyOf(500)), body);
}

// Leases of an hour's rest of life go with the process, though its child has all that it had.
TEST(Killed, R15LeasesOfAProcessGoThoughItsForkedChildLives) {
  int go[2], told[2], live[2];
  ASSERT_EQ(pipe2(go, O_CLOEXEC) | pipe2(told, O_CLOEXEC) | pipe2(live, O_CLOEXEC), 0);
  // Forked before this process has the threads of a node.
  const pid_t client = fork();
  if (client == 0) {
    close(live[1]);
    ConnectOptions options;
    std::array<char, 108> path{};
    if (read(go[0], path.data(), path.size()) <= 0) _exit(1);
    options.socket = path.data();
    Result<Store> store = Store::Connect(options);
    if (!store) _exit(2);
    Namespace ns = AttachTest(*store);
    const BlockRef ref{KeyOf(1)};
    Result<Lease> lease = store->Acquire(ns, std::span(&ref, 1), {.lease_us = kMaxLeaseUs}).Wait();
    if (!lease) _exit(3);
    char byte = 1;
    if (fork() == 0) {
      [[maybe_unused]] ssize_t end = read(live[0], &byte, 1);
      _exit(0);
    }
    [[maybe_unused]] ssize_t said = write(told[1], &byte, 1);
    pause();
    _exit(0);
  }
  close(told[1]);
  RealNode node;
  Store store = node.Connect();
  Namespace ns = AttachTest(store);
  ASSERT_TRUE(PutBlock(store, ns, 1, std::nullopt, kBytes).ok());
  const std::string socket = node.options().socket;
  ASSERT_GT(write(go[1], socket.data(), socket.size()), 0);
  char byte;
  ASSERT_EQ(read(told[0], &byte, 1), 1);
  EXPECT_EQ(StatusNumber(store, "leases"), 1u);
  kill(client, SIGKILL);
  Until([&] { return StatusNumber(store, "leases") == 0; });
  EXPECT_EQ(StatusNumber(store, "sessions"), 1u);
  waitpid(client, nullptr, 0);
  for (int fd : {go[0], go[1], told[0], live[0], live[1]}) close(fd);
}

}  // namespace
}  // namespace cistern
