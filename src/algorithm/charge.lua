-- What a call does to a counter. The twin of charge.rs.

-- What is spent after it, however much that is. Below nothing, a cost is given back, and nothing is a look.
local function charged(spent, cost, deepest)
  return math.max(math.min(spent + cost, deepest), 0)
end

-- What is spent after it, and whether it was over.
local function charge(spent, cost, drops, full, deepest)
  local over = spent + cost > full
  if over and drops then
    return spent, true
  end
  return charged(spent, cost, deepest), over
end
