-- The charge of a call. The twin of charge.rs.

-- Returns what is spent after a charge. A negative cost is a refund, 0 a peek.
local function charged(spent, cost, deepest)
  return math.max(math.min(spent + cost, deepest), 0)
end

-- Returns the cost of a grant: what is spent over the limit comes back, too.
local function granted(cost, spent, full)
  return cost - math.max(spent - full, 0)
end
