// SPDX-License-Identifier: Apache-2.0
// An engine that serves one copy of a model: prompts are computed in chunks, answers of all that run are
// decoded together, an iteration at a time, and each iteration takes as long as its operations or its bytes
// need, whichever is longer.
//
// A value without a clock: the owner asks for a step, and says when it ended. While nothing is to be
// prefilled many iterations are one step, which new work cuts short.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "planner/model.h"

namespace cistern::fleet {

struct EngineSpec {
  planner::Model model;  // parameters and active_parameters are set
  double flops_per_s = 0;
  double memory_bytes_per_s = 0;      // both as prefill and decode reach them
  double kv_room_bytes = 0;           // beside the weights
  std::uint64_t chunk_tokens = 8192;  // of an iteration, decoded ones included

  // Of computing tokens [from, to) of a prompt.
  double PrefillSeconds(std::uint64_t from, std::uint64_t to) const {
    return model.PrefillFlops(from, to) / flops_per_s;
  }
  // Of an iteration with one token in it.
  double LeastIterationSeconds() const;
  double IterationSeconds(double prefill_flops, std::uint64_t tokens, std::uint64_t decoded,
                          double kv_bytes) const;
};

using WorkId = std::uint32_t;

class Engine final {
 public:
  explicit Engine(const EngineSpec& spec) : spec_(&spec) {}  // borrowed

  // A prompt of `to` tokens, the first `from` of which are there. With `answer` above 1 it goes on to decode
  // here until it has said so many. It waits until there is room for its KV, and in its turn: behind those
  // that wait with a smaller number, whenever these were ready.
  void Prefill(WorkId id, std::uint64_t turn, std::uint64_t from, std::uint64_t to, std::uint64_t answer);
  // A prompt prefilled elsewhere, whose first token is said.
  void Decode(WorkId id, std::uint64_t tokens, std::uint64_t answer);
  // Whether a request of so many tokens can ever run here.
  bool Fits(std::uint64_t tokens) const { return spec_->model.Bytes(tokens) <= spec_->kv_room_bytes; }

  // Starts a step where none is under way and there is work: how long it takes.
  std::optional<double> Begin(double now_s);
  // New work is there: the step under way ends with its iteration. The time from now, if that is sooner.
  std::optional<double> Cut(double now_s);
  struct Ended {
    std::vector<WorkId> first;  // said their first token
    std::vector<WorkId> done;   // said their last
  };
  void End(Ended& ended);
  // It failed: all of its work, in the order of arrival as far as it waited.
  std::vector<WorkId> Fail();

  std::uint64_t requests() const {
    return waiting_.size() + prefilling_.size() + joining_.size() + finish_.size();
  }
  // Work that the step under way is likely to end.
  template <class See>
  void ForNext(See see) const {
    if (!finish_.empty()) see(finish_.front().id);
    if (!prefilling_.empty()) see(prefilling_.front().id);
  }
  // Reads for the processor what its end will touch.
  void Prefetch() const {
    __builtin_prefetch(finish_.data());
    if (finish_.size() > 2) __builtin_prefetch(finish_.data() + 2);
    __builtin_prefetch(prefilling_.data());
  }
  double busy_s() const { return busy_s_; }
  double prefill_s() const { return prefill_s_; }  // of it, by its operations alone

 private:
  struct Prompt {
    WorkId id;
    std::uint64_t turn, from, to, answer;
    std::uint64_t chunk = 0;  // of the step under way
  };
  struct Running {
    std::uint64_t finish;  // the iteration that says its last token
    WorkId id;
    double kv_bytes;       // when it joined
    double room_bytes;     // reserved
    std::uint64_t joined;  // the iteration
    bool operator>(const Running& other) const {
      return finish != other.finish ? finish > other.finish : id > other.id;
    }
  };

  double Room(std::uint64_t tokens) const { return spec_->model.Bytes(tokens); }
  void Admit();
  void Join(const Prompt& prompt);
  void TakeFinished(Ended& ended);

  const EngineSpec* spec_;
  std::deque<Prompt> waiting_, joining_;
  std::vector<Prompt> prefilling_;
  std::vector<Running> finish_;  // a heap: the soonest first
  double used_bytes_ = 0;        // reserved of the room
  double running_bytes_ = 0;     // KV that the next iteration of those that run reads
  std::uint64_t iteration_ = 0;

  bool stepping_ = false;
  double step_began_s_ = 0;
  double step_each_s_ = 0;
  double step_flops_ = 0;
  std::uint64_t step_iterations_ = 0;
  double busy_s_ = 0;
  double prefill_s_ = 0;
};

}  // namespace cistern::fleet
