mod compile;
