// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <array>
#include <charconv>
#include <limits>
#include <span>

#include "base/format.h"
#include "base/nearest.h"

namespace cistern {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t scale;
};

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
constexpr std::array<Unit, 9> kSizes = {{{"B", 1},
                                         {"KiB", 1ull << 10},
                                         {"MiB", 1ull << 20},
                                         {"GiB", 1ull << 30},
                                         {"TiB", 1ull << 40},
                                         {"KB", 1'000},
                                         {"MB", 1'000'000},
                                         {"GB", 1'000'000'000},
                                         {"TB", 1'000'000'000'000}}};
constexpr std::span<const Unit> kBinarySizes = std::span(kSizes).first(5);
constexpr std::array<Unit, 5> kDurations = {
    {{"us", 1}, {"ms", 1'000}, {"s", 1'000'000}, {"min", 60'000'000}, {"h", 3'600'000'000}}};

// What differs between the quantities when one is refused.
struct Quantity {
  std::span<const Unit> units;  // none: a count
  std::string_view kind;        // "a size"
  std::string_view example;     // "256MiB"
  std::string_view with_unit;   // the unit to suggest for a number that has none
  std::uint64_t most = kMost;
};

constexpr Quantity kSize = {kSizes, "a size", "256MiB", "MiB"};
// Clocks are signed: what is more would lie in the past.
constexpr Quantity kDuration = {kDurations, "a duration", "500ms", "ms",
                                std::numeric_limits<std::int64_t>::max()};
constexpr Quantity kCount = {{}, "a count", "1000", ""};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::unexpected<Status> Refuse(std::string_view name, std::string_view text, std::string_view why) {
  return Error(Code::kInvalid, Text(name, ": ", Shown(text), " ", why));
}

// The whole number that `text` begins with; `rest` is what follows it.
Result<std::uint64_t> LeadingNumber(std::string_view name, std::string_view text, const Quantity& quantity,
                                    std::string_view* rest) {
  const std::string form =
      quantity.units.empty()
          ? Text(quantity.kind, " is a whole number, such as ", quantity.example)
          : Text(quantity.kind, " is a whole number and a unit, such as ", quantity.example);
  if (text.empty()) return Error(Code::kInvalid, Text(name, ": is empty: ", form));
  if (text[0] == '-') return Refuse(name, text, Text("is negative: ", form));
  if (!IsDigit(text[0])) return Refuse(name, text, Text("does not begin with a digit: ", form));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  *rest = text.substr(static_cast<std::size_t>(end - text.data()));
  if (!rest->empty() && (rest->front() == '.' || rest->front() == ',')) {
    return Refuse(
        name, text,
        quantity.units.empty()
            ? Text("is not whole: ", form)
            : Text("is not whole: write a whole number of a smaller unit, such as ", quantity.example));
  }
  if (error == std::errc::result_out_of_range) {
    return Refuse(name, text, Text("is more than the largest number, ", kMost));
  }
  return value;
}

const Unit* FindUnit(std::span<const Unit> units, std::string_view name) {
  for (const Unit& unit : units) {
    if (name.size() == unit.name.size() && EditDistance(name, unit.name) == 0) return &unit;
  }
  return nullptr;
}

Result<std::uint64_t> ParseQuantity(std::string_view name, std::string_view text, const Quantity& quantity) {
  std::string_view rest;
  const Result<std::uint64_t> number = LeadingNumber(name, text, quantity, &rest);
  if (!number) return number;
  const std::string_view digits = text.substr(0, text.size() - rest.size());
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  std::string known;
  for (const Unit& unit : quantity.units) AppendText(known, Text(known.empty() ? "" : ", ", unit.name));
  if (rest.empty()) {
    return Refuse(name, text,
                  Text("has no unit: write ", Shown(digits), quantity.with_unit, " (units: ", known, ")"));
  }
  const Unit* unit = FindUnit(quantity.units, rest);
  if (!unit) {
    return Refuse(name, text, Text("has the unknown unit ", Shown(rest), ": known are ", known));
  }
  if (*number > quantity.most / unit->scale) {
    return Refuse(name, text, Text("is too large: the limit is ", quantity.most / unit->scale, unit->name));
  }
  return *number * unit->scale;
}

std::string ExactText(std::uint64_t value, std::span<const Unit> units) {
  const Unit* best = &units.front();
  for (const Unit& unit : units) {
    if (value != 0 && value % unit.scale == 0) best = &unit;
  }
  return Text(value / best->scale, best->name);
}

}  // namespace

Result<std::uint64_t> ParseSize(std::string_view name, std::string_view text) {
  return ParseQuantity(name, text, kSize);
}

Result<std::uint64_t> ParseDurationUs(std::string_view name, std::string_view text) {
  return ParseQuantity(name, text, kDuration);
}

Result<std::uint64_t> ParseCount(std::string_view name, std::string_view text, std::uint64_t least,
                                 std::uint64_t most) {
  std::string_view rest;
  const Result<std::uint64_t> number = LeadingNumber(name, text, kCount, &rest);
  if (!number) return number;
  if (!rest.empty()) return Refuse(name, text, "is not a whole number: it takes digits only, such as 1000");
  if (*number < least || *number > most) {
    return Refuse(name, text, Text("is out of range: it must be from ", least, " to ", most));
  }
  return number;
}

std::string SizeText(std::uint64_t bytes) { return ExactText(bytes, kBinarySizes); }

std::string RoughSizeText(std::uint64_t bytes) {
  const Unit* best = &kBinarySizes.front();
  for (const Unit& unit : kBinarySizes) {
    if (bytes >= unit.scale) best = &unit;
  }
  const std::uint64_t hundredths = bytes % best->scale * 100 / best->scale;
  if (hundredths == 0) return Text(bytes / best->scale, best->name);
  std::string decimals = Text(hundredths / 10, hundredths % 10);
  if (decimals.back() == '0') decimals.pop_back();
  return Text(bytes / best->scale, ".", decimals, best->name);
}

std::string DurationText(std::uint64_t duration_us) { return ExactText(duration_us, kDurations); }

}  // namespace cistern
