// SPDX-License-Identifier: Apache-2.0
// A workload's hits by tier, by decisions alone: memory of so many blocks over a lower tier, which has room
// for all or is a log of so many. With room for all a node whose blocks are written as soon as they are put,
// and read one after the other, hits the same.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <boost/unordered/unordered_flat_set.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "cistern/policy.h"
#include "cistern/status.h"
#include "policy/fetch_ahead.h"
#include "policy/order.h"
#include "policy/write_price.h"
#include "workload/lower_log.h"
#include "workload/request.h"

namespace cistern::workload {

// Which blocks are written below, at their put or later at a use.
enum class SimAdmission : std::uint8_t {
  kAll,  // the node's three
  kSecondHit,
  kWorth,
  kRejectFirst,  // only what is put again, after it was put once and lost: as many such are remembered as fit
};
std::string_view ToString(SimAdmission admission);
Result<SimAdmission> ParseSimAdmission(std::string_view text);
// "worth, all, ..."
std::string SimAdmissions();

struct TierSimOptions {
  EvictionPolicy policy = EvictionPolicy::kReuse;
  // kSecondHit is not simulated: it asks what was used since it was written, and when that was depends on the
  // device.
  Promotion promote = Promotion::kWorth;
  std::uint64_t blocks = 1;  // of memory, at least 1
  bool ahead = false;        // of turns that hints tell of
  SimAdmission admit = SimAdmission::kWorth;
  std::uint64_t lower_blocks = 0;  // 0: room for all
  std::uint64_t lower_budget = 0;  // blocks an hour that may be written below; 0: all
};

struct TierSimResult {
  std::uint64_t requests = 0;
  std::uint64_t accesses = 0;  // blocks of all requests
  std::uint64_t memory_hits = 0;
  std::uint64_t lower_hits = 0;
  std::uint64_t passing = 0;     // of these, those that did not stay in memory
  std::uint64_t ahead = 0;       // fetched before they were asked for
  std::uint64_t ahead_used = 0;  // of these, those that were then hit in memory
  std::uint64_t written = 0;     // below, once for each time that one is put
  std::uint64_t moved = 0;       // written again, to stay when their region was given up
  friend bool operator==(const TierSimResult&, const TierSimResult&) = default;
};

// A request reads its blocks that lie below one after the other, from the root on, and puts the missing ones.
// Each takes the place of what is coldest in memory, to stay, or to be the next to leave where it is worth
// less than what would be that. Then all are touched leaf to root.
//
// A block is written as it is put or touched, its ancestors before it. Of a region that is given up those
// stay that lie nowhere else and were used since they were written, or are extended by others, and those in
// memory that are worth it, of all seven in eight at most; the rest is lost there. A block that lies nowhere
// any more takes what extends it along.
//
// Where a request tells when the next turn comes, its blocks that lie below then are fetched shortly before,
// and are held in memory until it has come or is late (policy::FetchAhead).
class TierSimulator final {
 public:
  explicit TierSimulator(const TierSimOptions& options);
  TierSimulator(const TierSimulator&) = delete;
  TierSimulator& operator=(const TierSimulator&) = delete;

  void Submit(const Request& request, const PromptHints& hints = {});
  const TierSimResult& result() const { return result_; }

 private:
  struct Block {
    bool below = false;  // in the lower tier, whether in memory or not
    bool resident = false;
    bool transient = false;  // resident, and the next to leave
    bool ahead = false;      // resident, fetched for a turn to come and not hit yet
    bool used = false;       // since it was written
    LowerLog::Region region = 0;
    policy::EntryId parent = policy::kBelow;                         // none
    policy::EntryId first_child = policy::kBelow;                    // of those that extend it
    policy::EntryId next = policy::kBelow, before = policy::kBelow;  // of its siblings

    bool there() const { return below || resident; }
    bool extended() const { return first_child != policy::kBelow; }
  };
  // A prompt whose next turn was told of.
  struct Awaited {
    std::uint64_t asked_ms = 0;
    std::uint32_t told_ms = 0;
    bool over = false;  // it came, or is late
    std::vector<policy::EntryId> chain;
    std::vector<std::uint64_t> keys;
    std::vector<policy::EntryId> held;
  };
  using Due = std::tuple<std::uint64_t, std::uint64_t, bool>;  // when, which, whether it is late then

  policy::EntryId Dense(std::uint64_t hash_id);
  // Of the block before in the chain.
  policy::Standing ParentOf(std::size_t at) const;
  bool Passes(policy::EntryId id, const policy::Standing& standing);
  bool MayLeave(policy::EntryId id) const { return blocks_[id].below || !blocks_[id].extended(); }
  bool MakeRoom();
  void Link(policy::EntryId id, policy::EntryId parent);
  void Unlink(policy::EntryId id);
  void LeaveMemory(policy::EntryId id);
  void Lose(policy::EntryId id);
  bool Wanted(policy::EntryId id, bool at_put);
  void Write(policy::EntryId id);
  void GiveUp(const LowerLog::Given& given);
  void Await(const Request& request, const PromptHints& hints, std::uint64_t now_ms);
  void Came(std::uint64_t now_ms);
  void RunDue(std::uint64_t now_ms);
  void FetchAhead(Awaited& awaited);
  void LetGo(Awaited& awaited, bool late);
  void Enter(policy::EntryId id, const policy::Standing& standing, bool passes);
  bool Put(std::size_t at);
  bool Fetch(std::size_t at);
  void Touch(std::size_t at);

  const TierSimOptions options_;
  policy::Order order_;
  TierSimResult result_;
  std::vector<Block> blocks_;
  std::uint64_t used_ = 0;
  std::uint64_t now_ms_ = 0;
  LowerLog log_;
  policy::WritePrice price_;
  // What was put once, of late, to be written when it is put again.
  boost::unordered_flat_set<policy::EntryId> rejected_;
  std::deque<policy::EntryId> rejections_;

  boost::unordered_flat_map<std::uint64_t, policy::EntryId> dense_;
  std::vector<policy::EntryId> chain_;
  std::vector<std::uint64_t> keys_;
  std::vector<policy::EntryId> there_;  // of the first blocks, kBelow for those that are in memory no more
  TraceTime time_;

  policy::FetchAhead ahead_;
  std::vector<Awaited> awaited_;
  boost::unordered_flat_map<policy::EntryId, std::uint64_t> awaited_by_;  // a prompt's last whole block
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
};

// All of `requests`. Fails as the source fails. `told`: hints for each request, in order; the rest have none.
Result<TierSimResult> SimulateTiers(RequestSource& requests, const TierSimOptions& options,
                                    const std::vector<PromptHints>& told = {});

}  // namespace cistern::workload
