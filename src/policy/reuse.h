// SPDX-License-Identifier: Apache-2.0
// Eviction that knows how KV is reused: the block with the least expected hits per block-second leaves first.
//
// Blocks come back by request. A session sends its next turn, which starts with all that it sent before; a
// shared prompt is sent by many. So what is learned is when a *run* returns: the blocks of one request that
// are of one class. A class is
//   - how soon the session came back last time (an agent's tool loop: seconds; a person: minutes), or that
//     this is its first turn; of a block that several prompts extend, how soon it was used again;
//   - how many blocks the request added, which tells a long document from a question; of a shared block, how
//     many prompts extend it;
//   - what the caller says of the prompt's future (Outlook), if anything.
// A partial last block is a class of its own: the next turn fills it, and then it is another block.
//
// For each class and age the policy counts the runs that reached the age and those that returned at it. Runs
// that have not returned count at every age they pass, evicted or not; a class with few runs leans on those
// with its pace, and these on all. A block's value is the best ratio, over all times it could be kept from
// now, of the probability that it returns to the expected time that it is kept (Gittins' index).
//
// Every call is deterministic and without a clock: time comes in with a request.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/evict.h"

namespace cistern::policy {

// What the caller knows of a prompt. A wrong one costs nothing once it is learned how often it is wrong.
enum class Outlook : std::uint8_t {
  kUnknown = 0,
  kExtended = 1,  // a later prompt starts with this one: the conversation goes on, a tool runs
  kEnded = 2,     // none does
};

struct Prompt {
  std::uint64_t now_ms = 0;             // never before that of the request before
  std::span<const std::uint64_t> keys;  // a hash of each block and all before it
  std::span<const EntryId> resident;    // of the first blocks, those that hit
  bool partial = false;                 // the last block is not full
  Outlook outlook = Outlook::kUnknown;
};

// One request at a time: Begin, then for each missing block from the root Outranks, what it asks to evict
// (Coldest, Park, Remove) and Insert, then Touch of all resident ones from leaf to root.
class Reuse final {
 public:
  // Of a store of `blocks`: 24 bytes for each id up to the largest ever inserted (16 of them Lru's), and
  // 8 for each of `blocks`, 512 KiB at least.
  explicit Reuse(std::uint64_t blocks);

  void Begin(const Prompt& prompt);
  // The block at this position of the prompt is worth at least as much as this resident: it may take its
  // place.
  bool Outranks(std::size_t position, EntryId resident) const;
  // An absent id is the block at this position of the prompt.
  void Insert(EntryId id, std::size_t position);
  void Touch(EntryId id, std::size_t position);
  void Remove(EntryId id) { order_.Remove(id); }

  // The resident that is worth least, of those not parked; parking is Lru's.
  std::optional<EntryId> Coldest() const;
  void Park(EntryId id) { order_.Park(id); }
  void Unpark(EntryId id) { order_.Unpark(id); }
  bool Contains(EntryId id) const { return order_.Contains(id); }
  std::size_t size() const { return order_.size(); }

 private:
  using Class = SizeClass;  // a shelf of the order

  // Ages: below 1 s, three to an octave up to 4.7 h, and beyond.
  static constexpr std::size_t kOctaves = 14;
  static constexpr std::size_t kAges = 1 + 3 * kOctaves + 1;
  static constexpr std::size_t kPaces = 8;
  static constexpr std::size_t kShapes = 15;  // (3 outlooks x 4 lengths) + 3 fan-outs
  static constexpr std::size_t kClasses = kShapes * kPaces + 1;
  static constexpr Class kPartial = kClasses - 1;
  static constexpr std::uint16_t kNoGap = 0xffff;

  struct Entry {
    std::uint32_t last_ms = 0;    // its last use, modulo 2^32
    std::uint16_t gap = kNoGap;   // between its uses, in units of 64 ms
    std::uint8_t extensions = 0;  // prompts that went on from here each in another way
    bool shared() const { return extensions >= 2; }
  };
  // Blocks of one request and class, known by the deepest: when it is used again, all are.
  struct Run {
    std::uint64_t key = 0;
    std::uint32_t when_ms = 0;
    float weight = 0;
    std::uint32_t next = 0;  // in its bucket
    Class in = 0;
    bool live = false;  // it has not returned
    bool end = false;   // its deepest block is a prompt's last whole one
  };
  // Runs that reached each age, and those that returned at it.
  struct Returns {
    std::array<double, kAges> reached{};
    std::array<double, kAges> returned{};
  };
  struct Known {
    std::size_t blocks = 0;  // of the prompt, resident or remembered
    std::uint16_t gap = kNoGap;
  };

  static std::size_t AgeOf(std::uint32_t age_ms);
  static std::uint32_t AgeStart(std::size_t age);
  static std::size_t PaceOf(std::uint16_t gap);
  static std::size_t PaceIn(Class on) { return on == kPartial ? kPaces : on % kPaces; }
  Known Recognize(const Prompt& prompt);
  void Classify(const Prompt& prompt, const Known& known);
  void Remember(const Prompt& prompt);
  void PassAges();
  void Count(Class on, std::size_t age, double reached, double returned);
  void Refresh(Class on);
  std::uint32_t FindRun(std::uint64_t key) const;
  void Unlink(std::uint32_t run);
  double ValueOf(EntryId id) const {
    return value_[order_.size_class(id)][AgeOf(now_ms_ - entries_[id].last_ms)];
  }

  Lru order_;  // a shelf a class, in each the least recently used first
  std::vector<Entry> entries_;
  std::uint32_t now_ms_ = 0;

  // The current prompt's, a position each.
  std::vector<Class> classes_;
  std::vector<std::uint16_t> gaps_;
  std::size_t resident_ = 0;

  // Runs in the order of their requests, in a ring; those that live also by key.
  std::vector<Run> runs_;
  std::vector<std::uint32_t> buckets_;
  std::uint64_t next_run_ = 0;
  std::array<std::uint64_t, kAges> passed_{};  // runs before this one are past the age's start

  Returns all_;
  std::array<Returns, kPaces + 1> paces_{};  // the last for partial blocks
  std::array<Returns, kClasses> returns_{};
  std::array<std::array<double, kAges>, kClasses> value_{};
  std::size_t refreshed_ = 0;
};

}  // namespace cistern::policy
