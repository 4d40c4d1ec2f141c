// SPDX-License-Identifier: Apache-2.0
// The way out of a mistyped name: which known one was probably meant. For options, keys of a
// configuration, policies, units.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cistern {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`, in bytes, without
// regard to ASCII case. Only the first 64 bytes of each count.
std::size_t EditDistance(std::string_view a, std::string_view b);

// The known name nearest to `name` (the first of several), or nothing if none is near enough to be meant:
// more than a third of its letters are wrong, and more than one.
std::optional<std::string_view> Nearest(std::string_view name, std::span<const std::string_view> known);

// "unknown option --memroy: did you mean --memory?", or, with nothing near, "unknown policy foo: known are
// lru, slru". `what` is the kind of thing that has the name.
std::string UnknownName(std::string_view what, std::string_view name,
                        std::span<const std::string_view> known);

// What a stranger wrote, as an error message may repeat it: unprintable bytes as '?', cut after so many
// bytes.
std::string Shown(std::string_view text, std::size_t most = 60);
// The same of a path, which is told from another by its end: whole.
std::string ShownPath(std::string_view path);

}  // namespace cistern
