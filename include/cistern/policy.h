// SPDX-License-Identifier: Apache-2.0
// Policies: what leaves memory, what is written to flash and when, what stays in memory once it was read from
// there. Programs name them by enumerators. The texts here are those of the command line, configuration
// files, status and Python. A text that is none of them is kInvalid, and the message has it and those that
// there are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cistern/status.h"

namespace cistern {

// The order in which blocks leave memory.
enum class EvictionPolicy : std::uint8_t {
  kLru = 0,    // "lru": the least recently used first
  kReuse = 1,  // "reuse": the one of least expected hits per block-second, as is learned from requests
};

// What a caller knows of a prompt's future. A wrong one costs nothing once it is learned how often it is
// wrong.
enum class Outlook : std::uint8_t {
  kUnknown = 0,   // "unknown"
  kExtended = 1,  // "extended": a later prompt starts with this one: the conversation goes on, a tool runs
  kEnded = 2,     // "ended": none does
  kTool = 3,      // "tool": one does as soon as a tool has answered, which runs now
};

// How a prompt's blocks count beside others of the tenant, until another prompt uses them.
enum class Importance : std::uint8_t {
  kNormal = 0,  // "normal"
  kLow = 1,     // "low": a hit counts an eighth
  kHigh = 2,    // "high": a hit counts eight times
  kKeep = 3,  // "keep": they leave after all others, for an hour from their last use, as long as no more than
              // a quarter of the blocks in memory are such; past that they count as others do
};

// All that a caller may know of a prompt. None of it is needed; it changes the order in which blocks leave
// memory, and when they are read from flash into it, and nothing else.
struct PromptHints {
  Outlook outlook = Outlook::kUnknown;
  Importance importance = Importance::kNormal;
  // When the next turn is expected, in milliseconds from now; 0: not known. At most kMaxNextTurnMs, and not
  // with kEnded. As long as such times are true, what lies on flash of the prompt is in memory by then.
  std::uint32_t next_turn_ms = 0;
  friend bool operator==(const PromptHints&, const PromptHints&) = default;
};
inline constexpr std::uint32_t kMaxNextTurnMs = 86'400'000;

// When a block that is wanted on flash is written there.
enum class WritePolicy : std::uint8_t {
  kThrough = 0,    // "through": at once; found again after a reboot, and memory can always evict it
  kBack = 1,       // "back": when it has become cold; fewer writes, and a reboot loses the warm blocks
  kSelective = 2,  // "selective:N": after its N-th use
};
inline constexpr std::uint32_t kMaxSelectiveUses = 255;

// A WritePolicy with its parameter.
struct WriteRule {
  WritePolicy policy = WritePolicy::kThrough;
  std::uint32_t uses = 2;  // the N of kSelective, 1 to kMaxSelectiveUses
  friend bool operator==(const WriteRule&, const WriteRule&) = default;
};

// Which blocks are wanted on flash.
enum class Admission : std::uint8_t {
  kAll = 0,        // "all"
  kSecondHit = 1,  // "second-hit": those used after they were put; a prompt never repeated is never written
  kWorth = 2,  // "worth": all while there is room; then those likely enough to be used while they would lie
               // there, by what the eviction policy has learned, or the best that the budget pays for
};

// Which blocks stay in memory once they were read from flash.
enum class Promotion : std::uint8_t {
  kAll = 0,        // "all"
  kSecondHit = 1,  // "second-hit": those asked for before; others pass through and are the first to go again,
                   // so that a long prompt asked for once takes no room from what is asked for often
  kWorth = 2,  // "worth": those worth more than what would leave for them, by what the eviction policy has
               // learned; others pass through. Of what is put too, on its way to flash
};

std::string_view ToString(EvictionPolicy policy);
std::string ToString(const WriteRule& rule);
std::string_view ToString(Admission admission);
std::string_view ToString(Promotion promotion);
std::string_view ToString(Outlook outlook);
std::string_view ToString(Importance importance);

Result<EvictionPolicy> ParseEvictionPolicy(std::string_view text);
Result<WriteRule> ParseWriteRule(std::string_view text);  // "selective" alone is "selective:2"
Result<Admission> ParseAdmission(std::string_view text);
Result<Promotion> ParsePromotion(std::string_view text);
Result<Outlook> ParseOutlook(std::string_view text);
Result<Importance> ParseImportance(std::string_view text);

}  // namespace cistern
