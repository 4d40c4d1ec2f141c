// SPDX-License-Identifier: Apache-2.0
// Sizes, durations and counts as people write them. Every failure is kInvalid, and its message begins with
// `name`, the option or key that held the text, then says the value, what is wrong and the way out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cistern/status.h"

namespace cistern {

// A size in bytes: a whole number and one of B, KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB
// (powers of 1000), in any case, with or without a space between: "256MiB", "1 GB". A number alone is
// refused: nobody agrees on what it counts.
Result<std::uint64_t> ParseSize(std::string_view name, std::string_view text);

// A duration in microseconds: a whole number and one of us, ms, s, min, h: "500ms", "10s".
Result<std::uint64_t> ParseDurationUs(std::string_view name, std::string_view text);

// A whole number without a unit, from `least` to `most`.
Result<std::uint64_t> ParseCount(std::string_view name, std::string_view text, std::uint64_t least,
                                 std::uint64_t most);

// Exact, in the largest binary unit that divides it: "256MiB", "1000000B"; ParseSize gives it back.
std::string SizeText(std::uint64_t bytes);

// For eyes: at most two decimals of the largest binary unit that it reaches: "1.46GiB".
std::string RoughSizeText(std::uint64_t bytes);

// Exact, in the largest unit that divides it: "500ms", "90s"; ParseDurationUs gives it back.
std::string DurationText(std::uint64_t duration_us);

}  // namespace cistern
