// SPDX-License-Identifier: Apache-2.0
// What the planner knows of models, accelerators and storage: entries with a source and a date, compiled in
// and replaced or extended by a user's file.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/status.h"
#include "planner/model.h"

namespace cistern::planner {

struct ModelEntry {
  std::string name, source, date;
  boost::json::object config;  // as ModelFromConfig takes it
  std::optional<double> parameters, active_parameters, weight_bits;
};

struct Gpu {
  std::string name, source, date;
  double memory_bytes = 0;
  double memory_bytes_per_s = 0;
  double flops = 0;  // dense, 16 bit
};

// A place for KV: what one of it reads into an accelerator, and what it costs.
struct Medium {
  std::string name, source, date;
  double bytes_per_s = 0;
  double latency_s = 0;
  std::optional<double> price_low, price_high;  // USD a GB (10^9 bytes), bought
  std::optional<double> rent_per_gb_month;      // USD
};

struct Tables {
  std::vector<ModelEntry> models;
  std::vector<Gpu> gpus;
  std::vector<Medium> media;

  // What is compiled in.
  static Tables BuiltIn();
  // Adds the entries of a user's file, {"models": [...], "gpus": [...], "media": [...]} in the form of
  // src/planner/data; one with a known name replaces the entry. `where` begins messages: the file's name.
  // kInvalid names the entry and the field; nothing was added then.
  Status Add(std::string_view text, std::string_view where);

  // kInvalid has the nearest name.
  Result<Model> FindModel(std::string_view name, double kv_bits) const;
  Result<Gpu> FindGpu(std::string_view name) const;
  Result<Medium> FindMedium(std::string_view name) const;
};

}  // namespace cistern::planner
