// SPDX-License-Identifier: Apache-2.0
// A store in a test over flash on devices of the simulated disk, which fail and hang as the test says.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "flash_store.h"
#include "store/source_store_fixture.h"

namespace cistern {

class FlashStoreTest : public store::SourceStoreTest {
 protected:
  static constexpr std::uint64_t kMiB = 1u << 20;
  static constexpr const char* kFirstDevice = "flash0/flash";

  void TearDown() override {
    if (t) t->disk.Unhang(kFirstDevice);  // the end of a node waits for what hangs
  }
  // Room for `resident` blocks in memory, and for `flash_bytes` in regions of 64 KiB on `devices` devices.
  static store::TestStoreOptions With(std::uint64_t resident, std::uint64_t flash_bytes = 4 * kMiB,
                                      std::size_t devices = 1, std::uint64_t region_bytes = 256u << 10,
                                      std::uint32_t read_depth = 64) {
    store::TestStoreOptions options;
    options.store.max_blocks = resident;
    options.store.max_lower_blocks = 4096;
    options.store.read_ahead_bytes = 0;
    flash::FlashOptions flash;
    flash.region_bytes = region_bytes;
    flash.read_depth = read_depth;
    for (std::size_t i = 0; i < devices; ++i) {
      flash.devices.push_back({Text("flash", i), flash_bytes / devices});
    }
    options.tier = OnFlash(flash);
    return options;
  }
  // Puts one below the other, each written down before the next.
  void PutChainSlowly(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t n = first; n <= last; ++n) {
      ASSERT_EQ(Put(n, n == first ? std::nullopt : std::optional(n - 1)), store::State::kPublished) << n;
      t->Settle();
    }
  }
  // Ends in order; its host begins anew, with a clock that has gone so far.
  void Reboot(std::int64_t wall_s = 0, const NamespaceSpec& spec = store::OneGroup()) {
    t->Stop();
    t->ForgetMemory();
    t->clock.StepWall(wall_s);
    t->Start();
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    Attach(spec);
  }
  // By way of a view, wherever it was; none: it could not be had.
  std::optional<std::vector<std::byte>> Get(std::uint64_t n) {
    const store::AcquireGrant grant = Acquire({n}, Me());
    if (grant.views[0].code != Code::kOk) return std::nullopt;
    auto body = t->Read(ns.slot, store::Key(n));
    EXPECT_TRUE(body.has_value()) << n;
    EXPECT_TRUE(t->store->Release(Me(), grant.lease).ok());
    return body;
  }
  void SlowDevice(std::uint64_t us) {
    t->disk.set_faults(
        [us](const io::IoRequest&, const std::string&) { return io::Fault{io::FaultKind::kDelay, us}; });
  }
  bool Gets(std::uint64_t n) { return Get(n) == store::Body(n, 4096); }
  // As a node does, whatever hangs.
  void TickOnceLater() {
    t->clock.AdvanceUs(100'000);
    t->Tick();
    t->loop->RunUntilIdle();
  }
  void TickUntilFirstDeviceIsOut() {
    for (int i = 0; i < 200 && FlashOf(*t).devices()[0].in_service; ++i) TickOnceLater();
    ASSERT_FALSE(FlashOf(*t).devices()[0].in_service);
  }
  // A tick, 20 s later, in the middle of the collection of a namespace that is dropped meanwhile.
  Task<void> TickLaterOnceDropped(Executor&) {
    while (t->store->CheckNamespace(ns.slot, ns.incarnation).ok()) {
      t->clock.AdvanceUs(1);
      co_await Yield();
    }
    EXPECT_GT(Occupied().records, 41u) << "it is being collected, from the other end";
    t->clock.AdvanceUs(21'000'000);
    t->store->Tick();
  }
  // A drop after the cleaner has queued some, and before any of these is on its way.
  Task<void> DropOnceQueued(Executor&, std::uint64_t n) {
    co_await Yield();
    t->store->Tick();
    const BlockKey key = store::Key(n);
    const auto dropped = co_await t->store->Drop(ns.slot, std::span(&key, 1));
    EXPECT_TRUE(dropped.has_value());
  }
  Task<void> Sleep(Executor&, std::int64_t us) { co_await SleepUntil(t->clock.Now().PlusUs(us)); }
  std::uint64_t Count(const Counter& counter) { return counter.value(); }
  const catalog::StoreCounters& Counters() { return t->store->counters(); }
};

}  // namespace cistern
