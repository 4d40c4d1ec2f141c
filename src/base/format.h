// SPDX-License-Identifier: Apache-2.0
// Text from values without a formatting library: g++ 12 has no <format>, and fmt's headers cost seconds
// in every file that says an error. Text("slot ", 17, " of ", n).
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>

namespace cistern {

inline void AppendText(std::string& out, std::string_view text) { out.append(text); }
inline void AppendText(std::string& out, std::same_as<char> auto c) { out.push_back(c); }
inline void AppendText(std::string& out, std::same_as<bool> auto b) { out.append(b ? "true" : "false"); }
template <class T>
  requires(std::integral<T> || std::floating_point<T>) && (!std::same_as<T, char>) && (!std::same_as<T, bool>)
void AppendText(std::string& out, T value) {
  char digits[64];
  auto end = std::to_chars(digits, digits + sizeof(digits), value);
  out.append(digits, static_cast<std::size_t>(end.ptr - digits));
}

template <class... Args>
std::string Text(const Args&... args) {
  std::string out;
  (AppendText(out, args), ...);
  return out;
}

// The texts of items, with `between` between them: Joined(rules, ", ", &ClientRule::text).
template <class Items, class TextOf = std::identity>
std::string Joined(const Items& items, std::string_view between, const TextOf& text_of = {}) {
  std::string all;
  bool first = true;
  for (const auto& item : items) {
    if (!first) all += between;
    first = false;
    AppendText(all, std::invoke(text_of, item));
  }
  return all;
}

// "0x1f", for offsets and checksums.
inline std::string Hex(std::uint64_t value) {
  char digits[16];
  auto end = std::to_chars(digits, digits + sizeof(digits), value, 16);
  return "0x" + std::string(digits, end.ptr);
}

}  // namespace cistern
