// SPDX-License-Identifier: Apache-2.0
// What is learned of how KV is reused: the expected hits per block-second of a block, by its class and age.
//
// Blocks come back by request. A session sends its next turn, which starts with all that it sent before; a
// shared prompt is sent by many. So what is learned is when a *run* returns: the blocks of one request that
// are of one class. A class is
//   - how soon the session came back last time (an agent's tool loop: seconds; a person: minutes), or that
//     this is its first turn; of a block that several prompts extend, how soon it was used again;
//   - how many blocks the request added, which tells a long document from a question; of a shared block, how
//     many prompts extend it;
//   - what the caller says of the prompt (PromptHints), if anything, in place of the blocks added, and a time
//     that it tells in place of the pace.
// A partial last block is a class of its own: the next turn fills it, and then it is another block.
//
// For each class and age the policy counts the runs that reached the age and those that returned at it. Runs
// that have not returned count at every age they pass, evicted or not; a class with few runs leans on those
// with its pace, and these on all, of which no age that few have reached is held to be better than the ages
// before it. A block's value is the best ratio, over all times it could be kept from now, of the probability
// that it returns to the expected time that it is kept (Gittins' index). It keeps another block out only once
// its class was seen to return.
//
// Every call is deterministic, without a clock and O(1) in the number of blocks: a prompt is taken in block
// by block, so that its caller may pause.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cistern/policy.h"

namespace cistern::policy {

// Milliseconds, modulo 2^32.
using UseTime = std::uint32_t;

// What a block that becomes resident is held to be.
struct Standing {
  std::uint16_t gap = 0xffff;  // between the last two turns of its session, in units of 64 ms
  std::uint8_t in = 0;         // its class
  bool told = false;           // by its prompt; else by default
};

// Uses of a resident block.
struct Usage {
  UseTime last = 0;
  std::uint16_t gap = 0xffff;   // as Standing's; of a shared block: between its uses
  std::uint8_t extensions = 0;  // prompts that went on from here each in another way
  std::uint8_t in : 7 = 0;
  std::uint8_t told : 1 = 0;
  bool shared() const { return extensions >= 2; }
};
static_assert(sizeof(Usage) == 8);

class Reuse final {
 public:
  using Class = std::uint8_t;
  static constexpr std::size_t kPaces = 8;
  // Shapes: 4 lengths where nothing is said, 3 outlooks, a told time, 3 importances, 3 fan-outs.
  static constexpr std::size_t kLengths = 4, kTold = 7, kImportant = 8, kFans = 11, kShapes = 14;
  static constexpr std::size_t kClasses = kShapes * kPaces + 1;
  static constexpr Class kPartial = kClasses - 1;
  // Uses that are closer together than this are one.
  static constexpr UseTime kOneUseMs = 1'024;

  // Of a store of `blocks`: 8 bytes for each of them, 512 KiB at least. With blocks below memory 384 KiB
  // more.
  explicit Reuse(std::uint64_t blocks);

  // A prompt has begun.
  bool taught() const { return taught_; }

  // ---- a prompt: Begin; Look at its blocks from the last that is resident on; Classify; Use of the resident
  // ones from leaf to root; End. Keys are hashes of a block and all before it.
  struct Asked {
    std::uint64_t blocks = 0;
    std::uint64_t resident = 0;  // of the first blocks, those that are there
    bool partial = false;        // the last block is not full
    PromptHints hints{};
  };
  class Prompt final {
   public:
    explicit Prompt(const Asked& what) : asked(what) {}

   private:
    friend class Reuse;
    const Asked asked;
    UseTime now = 0;
    std::uint64_t known = 0;  // blocks of the prompt, resident or remembered
    bool ended = false;       // the last of them was a prompt's end, at `ended_at`
    UseTime ended_at = 0;
    std::uint64_t first = 0, last_whole = 0;  // keys of new blocks: the first, the last that is full
    std::uint64_t end = 0;                    // and of the last
    Standing own;
    std::uint64_t run_key = 0;  // of the run that Use is in
    std::uint64_t run_blocks = 0;
    Class run_in = 0;
    bool run_end = false;
  };
  void Begin(Prompt& prompt, UseTime now);
  void Look(Prompt& prompt, std::uint64_t position, std::uint64_t key);
  // `last`: of the last resident block, null where there is none.
  void Classify(Prompt& prompt, Usage* last);
  // Null for a block that lies below memory: what it is held to be, should it be fetched, is kept for a
  // while.
  void Use(Prompt& prompt, std::uint64_t position, std::uint64_t key, Usage* usage);
  void End(Prompt& prompt);
  // Reads for the processor what a Look at each of the keys will touch.
  void Prefetch(std::span<const std::uint64_t> keys) const;

  // What a new block is: what its prompt said, else as its parent, else the default. The same of one that is
  // fetched from below memory.
  Standing StandingOf(std::uint64_t key, const Standing& parent) const {
    return StandingIn(expected_, key, parent);
  }
  Standing StandingBelow(std::uint64_t key, const Standing& parent) const {
    return StandingIn(below_, key, parent);
  }
  // A use without a prompt: its run, if it is the deepest block of one, returned and begins anew.
  void Return(Usage& usage, std::uint64_t key, UseTime now);

  // Hits per block-second.
  struct Value {
    double expected = 0;
    double proven = 0;  // the same, once its class was seen to return at the age or later; else 0
  };
  Value ValueOf(Class in, UseTime age) const { return value_[in][AgeOf(age)]; }
  // Of a class's blocks, the share that is used again within so long of its last use.
  double ReturnsWithin(Class in, double ms) const;
  static bool IsKept(Class in) {
    return in / kPaces == kImportant + static_cast<std::size_t>(Importance::kKeep) - 1;
  }

 private:
  // Ages: below 1 s, three to an octave up to 4.7 h, and beyond.
  static constexpr std::size_t kOctaves = 14;
  static constexpr std::size_t kAges = 1 + 3 * kOctaves + 1;
  static const std::array<UseTime, kAges> kAgeStarts;
  static constexpr std::uint16_t kNoGap = 0xffff;
  static constexpr std::uint32_t kNone = 0xffff'ffff;

  // Blocks of one request and class, known by the deepest: when it is used again, all are.
  struct Run {
    std::uint64_t key = 0;
    UseTime when = 0;
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
  using Shares = std::array<double, kAges>;  // of runs that reach an age, those that return at it
  // Blocks of prompts that were not put, or fetched, yet; the newest of a set stay.
  struct Expected {
    std::uint64_t key = 0;
    UseTime when = 0;
    Standing standing;  // told: the entry is in use
  };
  static constexpr std::size_t kWays = 4;
  using ExpectedTable = std::vector<std::array<Expected, kWays>>;
  static constexpr std::size_t kSets = 1'024;
  static constexpr std::size_t kSetsBelow =
      4'096;  // all blocks of a prompt, where of new ones two are enough

  static std::size_t AgeOf(UseTime age);
  static UseTime WidthOf(std::size_t age);
  static std::size_t PaceOf(std::uint16_t gap);
  static std::size_t PaceIn(Class on) { return on == kPartial ? kPaces : on % kPaces; }
  static bool IsOwn(Class on) { return on < kFans * kPaces; }
  // Of a prompt whose new blocks are `added`.
  static std::size_t ShapeOf(const PromptHints& hints, std::uint64_t added);
  void Remember(Prompt& prompt, std::uint64_t position, std::uint64_t key, Class in, std::uint64_t blocks);
  void FlushRun(Prompt& prompt);
  void AddRun(Run run);
  void PassAges(UseTime now);
  void Count(Class on, std::size_t age, double reached, double returned);
  void Refresh(Class on);
  static std::array<double, kAges> HitsASecond(const Shares& shares);
  std::uint32_t FindRun(std::uint64_t key) const;
  void Unlink(std::uint32_t run);
  static void Expect(ExpectedTable& table, std::uint64_t key, const Standing& standing, UseTime now);
  static Standing StandingIn(const ExpectedTable& table, std::uint64_t key, const Standing& parent);

  // Runs in the order of their requests, in a ring; those that live also by key.
  std::vector<Run> runs_;
  std::vector<std::uint32_t> buckets_;
  std::uint64_t next_run_ = 0;
  struct Passed {
    std::uint64_t next = 0;  // runs before this one are past the age's start
    UseTime when = 0;        // of that one, where it waits
    bool waits = false;
  };
  std::array<Passed, kAges> passed_{};
  ExpectedTable expected_;
  ExpectedTable below_;  // empty until the first is noted

  Returns all_;
  Shares shares_of_all_{};  // as all_ says, where it is known
  bool shares_of_all_known_ = false;
  std::array<Returns, kPaces + 1> paces_{};  // the last for partial blocks
  std::array<Returns, kClasses> returns_{};
  std::array<std::array<Value, kAges>, kClasses> value_{};
  std::array<std::array<float, kAges + 1>, kClasses>
      unused_{};                // not used again by each age's start, and its end
  std::bitset<kClasses> used_;  // those worked out anew in turn: of no hints, and of hints that were given
  std::size_t refreshed_ = 0;
  std::uint64_t returns_seen_ = 0;
  bool taught_ = false;
};

}  // namespace cistern::policy
