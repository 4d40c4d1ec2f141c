// SPDX-License-Identifier: Apache-2.0
// A read of what was not in memory, of a node that has a tier below it: the node fetches the blocks into
// slots and leases them, and whoever waits for the read copies them out there, checked as every read is.
//
// Asked for in windows, the next one under way while one is copied, so that a read of more than the memory
// holds passes through it. Ready with the first of them; Wait does the copying, in the thread that waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "cistern/store.h"
#include "client/block_reads.h"
#include "client/channel.h"

namespace cistern::client {

class LowerTierReads final : public internal::PendingCall<ReadResult> {
 public:
  // `so_far` is what memory gave for `blocks` to a read that began then; its misses are asked for. Copies the
  // lists, not what they point into the caller's memory for.
  static Ticket<ReadResult> Begin(std::shared_ptr<Channel> channel, const Namespace& ns,
                                  std::span<const BlockRead> blocks, const ReadOptions& options,
                                  std::int64_t began_ns, ReadResult so_far);

  LowerTierReads(std::shared_ptr<Channel> channel, const Namespace& ns, std::span<const BlockRead> blocks,
                 const ReadOptions& options, std::int64_t began_ns, ReadResult so_far);

  bool Ready() override { return asked_.empty() || asked_.front().call.Ready(); }
  Result<ReadResult> Wait() override;
  std::uint64_t id() const override { return id_; }

 private:
  static constexpr std::size_t kWindowsAhead = 2;
  static constexpr std::size_t kWindowBlocks = 1024;
  static constexpr std::uint64_t kWindowBytes = 64u << 20;

  struct Asked {
    Call call;
    std::size_t first = 0;  // of missing_
    std::size_t count = 0;
    std::int64_t ends_ns = 0;  // of the lease that it brings
  };

  std::uint64_t BytesOf(const BlockRead& block) const;
  std::size_t WindowFrom(std::size_t first) const;
  // Asks for further windows as far as they may be ahead. Not ok: nothing is under way for this.
  Status AskAhead();
  Status Ask(std::size_t count);
  // The first window's answer, which is there or is waited for. Not ok: the whole read ends with it.
  Status Take();
  void CopyOut(const Asked& asked, const wire::Completion& completion);
  void Fill(std::size_t first, std::size_t count, Code code);

  const std::shared_ptr<Channel> channel_;
  const Namespace ns_;
  const std::int64_t deadline_ns_;
  const std::int64_t worth_ns_;
  const std::uint64_t window_bytes_;
  const bool touch_;
  ReadResult result_;
  std::vector<std::size_t> missing_;  // of the result's outcomes
  std::vector<BlockRead> reads_;      // one each, over the lists below
  std::vector<ReadRange> ranges_;
  std::vector<std::span<std::byte>> pieces_;
  std::uint64_t id_ = 0;     // of the first window's call
  std::size_t next_ = 0;     // of missing_: not asked for yet
  std::deque<Asked> asked_;  // not taken yet: some, until Wait
};

}  // namespace cistern::client
