// SPDX-License-Identifier: Apache-2.0
#include "cell_world.h"
#include "storm_program.h"

int main(int count, char** words) {
  using cistern::mesh::CellWorld;
  return cistern::RunStorm<CellWorld>(
      count, words, "cell_storm",
      {{"taken", "records taken", &CellWorld::taken}, {"refused", "refused", &CellWorld::refused}});
}
