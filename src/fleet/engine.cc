// SPDX-License-Identifier: Apache-2.0
#include "fleet/engine.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/assert.h"

namespace cistern::fleet {

double EngineSpec::IterationSeconds(double prefill_flops, std::uint64_t tokens, std::uint64_t decoded,
                                    double kv_bytes) const {
  const double flops = prefill_flops + 2 * *model.active_parameters * static_cast<double>(decoded);
  // Of a mixture of experts the tokens of an iteration meet as many weights as they can.
  const double met = std::min(*model.parameters, *model.active_parameters * static_cast<double>(tokens));
  const double bytes = met * model.weight_bits / 8 + kv_bytes;
  return std::max(flops / flops_per_s, bytes / memory_bytes_per_s);
}

double EngineSpec::LeastIterationSeconds() const { return IterationSeconds(0, 1, 1, 0); }

void Engine::Prefill(WorkId id, std::uint64_t turn, std::uint64_t from, std::uint64_t to,
                     std::uint64_t answer) {
  CISTERN_ASSERT(from < to);
  auto at = waiting_.end();
  while (at != waiting_.begin() && std::prev(at)->turn > turn) --at;
  waiting_.insert(at, {id, turn, from, to, answer});
}

void Engine::Decode(WorkId id, std::uint64_t tokens, std::uint64_t answer) {
  CISTERN_ASSERT(answer > 1);
  joining_.push_back({id, 0, tokens, tokens, answer});
}

// First come, first served: what waits for room holds up what came later.
void Engine::Admit() {
  while (!joining_.empty()) {
    const Prompt& prompt = joining_.front();
    const double room = Room(prompt.to + prompt.answer);
    if (used_bytes_ + room > spec_->kv_room_bytes) break;
    used_bytes_ += room;
    Join(prompt);
    joining_.pop_front();
  }
  std::uint64_t tokens = finish_.size();
  for (Prompt& prompt : prefilling_) {
    prompt.chunk =
        std::min(prompt.to - prompt.from, spec_->chunk_tokens - std::min(spec_->chunk_tokens, tokens));
    tokens += prompt.chunk;
  }
  while (!waiting_.empty() && tokens < spec_->chunk_tokens) {
    Prompt& prompt = waiting_.front();
    const double room = Room(prompt.to + prompt.answer);
    if (used_bytes_ + room > spec_->kv_room_bytes) break;
    used_bytes_ += room;
    prompt.chunk = std::min(prompt.to - prompt.from, spec_->chunk_tokens - tokens);
    tokens += prompt.chunk;
    prefilling_.push_back(prompt);
    waiting_.pop_front();
  }
}

// Its first token is said: as many iterations as it has left.
void Engine::Join(const Prompt& prompt) {
  const double bytes = spec_->model.Bytes(prompt.to);
  running_bytes_ += bytes;
  finish_.push_back(
      {iteration_ + prompt.answer - 1, prompt.id, bytes, Room(prompt.to + prompt.answer), iteration_});
  std::ranges::push_heap(finish_, std::greater());
}

std::optional<double> Engine::Begin(double now_s) {
  if (stepping_) return std::nullopt;
  Admit();
  if (prefilling_.empty() && finish_.empty()) return std::nullopt;
  const std::uint64_t decoded = finish_.size();
  std::uint64_t tokens = decoded;
  step_flops_ = 0;
  for (const Prompt& prompt : prefilling_) {
    step_flops_ += spec_->model.PrefillFlops(prompt.from, prompt.from + prompt.chunk);
    tokens += prompt.chunk;
  }
  step_iterations_ = prefilling_.empty() ? finish_.front().finish - iteration_ : 1;
  // Each iteration's KV is a token longer for each that runs: the one in the middle is the mean.
  const double growth = static_cast<double>(decoded) * spec_->model.BytesPerTokenBeyondWindows();
  const double middle = running_bytes_ + growth * static_cast<double>(step_iterations_ - 1) / 2;
  step_each_s_ = spec_->IterationSeconds(step_flops_, tokens, decoded, middle);
  step_began_s_ = now_s;
  stepping_ = true;
  return step_each_s_ * static_cast<double>(step_iterations_);
}

std::optional<double> Engine::Cut(double now_s) {
  if (!stepping_ || step_iterations_ == 1) return std::nullopt;
  const double passed = std::max(1.0, std::ceil((now_s - step_began_s_) / step_each_s_));
  if (passed >= static_cast<double>(step_iterations_)) return std::nullopt;
  step_iterations_ = static_cast<std::uint64_t>(passed);
  return std::max(0.0, step_began_s_ + passed * step_each_s_ - now_s);
}

void Engine::TakeFinished(Ended& ended) {
  while (!finish_.empty() && finish_.front().finish <= iteration_) {
    const Running& running = finish_.front();
    used_bytes_ -= running.room_bytes;
    running_bytes_ -= running.kv_bytes + static_cast<double>(iteration_ - running.joined) *
                                             spec_->model.BytesPerTokenBeyondWindows();
    ended.done.push_back(running.id);
    std::ranges::pop_heap(finish_, std::greater());
    finish_.pop_back();
  }
  if (finish_.empty()) running_bytes_ = 0;
}

void Engine::End(Ended& ended) {
  CISTERN_ASSERT(stepping_);
  ended.first.clear();
  ended.done.clear();
  stepping_ = false;
  busy_s_ += step_each_s_ * static_cast<double>(step_iterations_);
  prefill_s_ += step_flops_ / spec_->flops_per_s;
  running_bytes_ +=
      static_cast<double>(finish_.size() * step_iterations_) * spec_->model.BytesPerTokenBeyondWindows();
  iteration_ += step_iterations_;
  TakeFinished(ended);
  for (Prompt& prompt : prefilling_) {
    prompt.from += prompt.chunk;
    if (prompt.from < prompt.to) continue;
    ended.first.push_back(prompt.id);
    if (prompt.answer > 1) {
      Join(prompt);
    } else {
      ended.done.push_back(prompt.id);
      used_bytes_ -= Room(prompt.to + prompt.answer);
    }
  }
  std::erase_if(prefilling_, [](const Prompt& prompt) { return prompt.from == prompt.to; });
  if (requests() == waiting_.size() + joining_.size()) used_bytes_ = 0;
}

std::vector<WorkId> Engine::Fail() {
  std::vector<WorkId> lost;
  for (const auto& running : finish_) lost.push_back(running.id);
  for (const auto& prompt : prefilling_) lost.push_back(prompt.id);
  for (const auto& prompt : joining_) lost.push_back(prompt.id);
  for (const auto& prompt : waiting_) lost.push_back(prompt.id);
  finish_.clear();
  prefilling_.clear();
  joining_.clear();
  waiting_.clear();
  used_bytes_ = running_bytes_ = 0;
  stepping_ = false;
  return lost;
}

}  // namespace cistern::fleet
